"""A shared model from which one step leads far: FedAvg for meta-learning.

Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020 (arXiv 2002.07948), Algorithm 1 with the first-order gradient
(FO): each local step takes the gradient of a batch of the query set where a step on a batch of the
support set leads. Before it predicts, a client takes such a step.

Departures: of the paper's approximations the first-order one alone, without Hessians; a client may
take several steps before it predicts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fedpersonal.algorithm import Algorithm, GradientPhase, LookAhead, Phase
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.method import (
    ClientOptions,
    Layers,
    Method,
    SplitOptions,
)
from fedpersonal.data.parts import split_parts
from fedpersonal.optimizers.named import build_client_optimizer
from fedpersonal.options import option

if TYPE_CHECKING:
    import tensorflow_federated as tff


def per_fed_avg(
    *,
    adaptation_optimizer: tff.learning.optimizers.Optimizer,
    support_query_split: str = "skip",
    support_share: float = 0.5,
    **options: Any,
) -> Algorithm:
    """Returns the one phase of Per-FedAvg.

    Args:
        adaptation_optimizer: Optimizer of the step that adapts, of rate alpha.
        support_query_split: As of `fed_recon`: which batches adapt, and which are stepped on.
        support_share: As of `fed_recon`.
        **options: Of `fed_avg`; `client_optimizer` has the rate beta.
    """
    support, query = split_parts(support_query_split, support_share)
    algorithm = fed_avg(**options)
    ahead = LookAhead(adaptation_optimizer, data=support)
    phase = dataclasses.replace(algorithm.last_phase, data=query, ahead=ahead)
    return dataclasses.replace(algorithm, name="per_fed_avg", phases=(phase,))


class PerFedAvgOptions(ClientOptions, SplitOptions):
    """What a client of Per-FedAvg does."""

    adaptation_learning_rate: float = option(
        0.01, "per_fed_avg: SGD rate alpha of the step that adapts.", above=0
    )
    adaptation_steps: int = option(
        1, "per_fed_avg: such steps of a client before it predicts.", at_least=1
    )


def build(options: PerFedAvgOptions, layers: Layers) -> Algorithm:
    """Returns Per-FedAvg as options describe it."""
    del layers
    return per_fed_avg(
        **options.local_work(),
        adaptation_optimizer=build_client_optimizer("sgd", options.adaptation_learning_rate),
        support_query_split=options.support_query_split,
        support_share=options.support_share,
    )


def adaptation(options: PerFedAvgOptions) -> tuple[Phase, ...]:
    """Returns what a client does before it predicts."""
    steps = options.adaptation_steps
    optimizer = build_client_optimizer("sgd", options.adaptation_learning_rate)
    return (GradientPhase("all", "all", optimizer, epochs=steps, max_steps=steps),)


METHODS = (
    Method(
        "per_fed_avg",
        "Per-FedAvg",
        build,
        PerFedAvgOptions,
        finetunes="all",
        adaptation=adaptation,
    ),
)

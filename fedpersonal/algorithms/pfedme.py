"""A shared model amid the personal ones: gradient descent on clients' Moreau envelopes.

T. Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020 (arXiv
2006.08848), Algorithm 1: on each batch, K steps from w lead to theta, near the minimum of the loss
+ lambda / 2 |theta - w|^2; then w moves by -eta * lambda * (w - theta). The server's beta is its
learning rate. A client predicts with its theta(w), to which steps of the same kind lead, as many
as --finetuning_epochs has.

Departures: nothing is kept, where the authors' code evaluates what a client's last round has left.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fedpersonal.algorithm import Algorithm, GradientPhase, LookAhead, Phase
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.method import ClientOptions, FinetuningOptions, Layers, Method
from fedpersonal.optimizers.named import build_client_optimizer
from fedpersonal.options import option

if TYPE_CHECKING:
    import tensorflow_federated as tff


def pfedme(
    *,
    inner_optimizer: tff.learning.optimizers.Optimizer,
    inner_steps: int = 5,
    envelope: float = 15.0,
    **options: Any,
) -> Algorithm:
    """Returns the one phase of pFedMe.

    Args:
        inner_optimizer: Optimizer of theta.
        inner_steps: Its steps on a batch, K.
        envelope: Weight of theta's pull to w, lambda.
        **options: Of `fed_avg`; `client_optimizer` moves w, at the rate eta.
    """
    algorithm = fed_avg(**options)
    ahead = LookAhead(inner_optimizer, inner_steps, envelope=envelope)
    phase = dataclasses.replace(algorithm.last_phase, ahead=ahead)
    return dataclasses.replace(algorithm, name="pfedme", phases=(phase,))


class PFedMeOptions(ClientOptions, FinetuningOptions):
    """What a client of pFedMe does; SGD at `outer_learning_rate` is its client optimizer."""

    envelope: float = option(15.0, "pfedme: weight lambda of theta's pull to w.", above=0)
    inner_learning_rate: float = option(0.01, "pfedme: SGD rate of theta.", above=0)
    inner_steps: int = option(5, "pfedme: steps K of theta on a batch.", at_least=1)
    outer_learning_rate: float = option(
        0.01, "pfedme: SGD rate eta of w, in place of --client_learning_rate.", above=0
    )


def build(options: PFedMeOptions, layers: Layers) -> Algorithm:
    """Returns pFedMe as options describe it."""
    del layers
    work = options.local_work()
    work["client_optimizer"] = build_client_optimizer("sgd", options.outer_learning_rate)
    return pfedme(
        **work,
        inner_optimizer=build_client_optimizer("sgd", options.inner_learning_rate),
        inner_steps=options.inner_steps,
        envelope=options.envelope,
    )


def adaptation(options: PFedMeOptions) -> tuple[Phase, ...]:
    """Returns what leads a client to its theta(w) before it predicts."""
    optimizer = build_client_optimizer("sgd", options.inner_learning_rate)
    work = options.finetuning_epochs, options.max_finetuning_steps or None
    return (GradientPhase("all", "all", optimizer, *work, proximal=options.envelope),)


METHODS = (
    Method("pfedme", "pFedMe", build, PFedMeOptions, finetunes="all", adaptation=adaptation),
)

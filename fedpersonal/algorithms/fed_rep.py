"""A shared representation and local heads, trained in turn.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021
(arXiv 2102.07078), Algorithm 1: steps on the client's own head with the representation frozen, then
steps on the representation with the head frozen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpersonal.algorithm import Algorithm, GradientPhase
from fedpersonal.algorithms.method import KeepingOptions, Layers, Method
from fedpersonal.options import option

if TYPE_CHECKING:
    import tensorflow_federated as tff


def fed_rep(
    *,
    client_optimizer: tff.learning.optimizers.Optimizer,
    local_optimizer: tff.learning.optimizers.Optimizer | None = None,
    local_only_epochs: int = 1,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: str = "num_examples",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns the two phases of FedRep, for a model whose last layers are local.

    Args:
        client_optimizer: Optimizer of the representation.
        local_optimizer: Optimizer of the head, or None for the same.
        local_only_epochs: Passes over the client's data in which the head moves (tau).
        local_epochs: Passes in which the representation moves, after that.
        max_local_steps: Bound on the steps of each phase.
        weighting: `num_examples` or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.
    """
    optimizer = local_optimizer or client_optimizer
    head = GradientPhase("local", "all", optimizer, local_only_epochs, max_local_steps)
    body = GradientPhase("global", "all", client_optimizer, local_epochs, max_local_steps)
    return Algorithm("fed_rep", (head, body), "kept", weighting, max_update_norm)


class FedRepOptions(KeepingOptions):
    """What a client of FedRep does."""

    local_only_epochs: int = option(
        1, "Passes that move the local variables alone, before the others.", at_least=0
    )


def build(options: FedRepOptions, layers: Layers) -> Algorithm:
    """Returns FedRep as options describe it."""
    del layers
    algorithm = fed_rep(
        **options.local_work(),
        local_optimizer=options.local_optimizer(),
        local_only_epochs=options.local_only_epochs,
    )
    return options.settle(algorithm)


METHODS = (Method("fed_rep", "FedRep", build, FedRepOptions, local_part="head"),)

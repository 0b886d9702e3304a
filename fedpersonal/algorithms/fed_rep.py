"""A shared representation and local heads, trained in turn.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021
(arXiv 2102.07078), Algorithm 1: steps on the client's own head with the representation frozen, then
steps on the representation with the head frozen.
"""

from __future__ import annotations

from typing import Any

from fedpersonal.algorithm import Algorithm, GradientPhase


def fed_rep(
    *,
    client_optimizer: Any,
    local_optimizer: Any = None,
    local_only_epochs: int = 1,
    epochs: int = 1,
    max_steps: int | None = None,
    weighting: str = "num_examples",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns the two phases of FedRep, for a model whose last layers are local.

    Args:
        client_optimizer: Optimizer of the representation.
        local_optimizer: Optimizer of the head, or None for the same.
        local_only_epochs: Passes over the client's data in which the head moves (tau).
        epochs: Passes in which the representation moves, after that.
        max_steps: Bound on the steps of each phase.
        weighting: `num_examples` or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.
    """
    head = GradientPhase(
        variables="local",
        data="all",
        optimizer=local_optimizer or client_optimizer,
        epochs=local_only_epochs,
        max_steps=max_steps,
    )
    representation = GradientPhase(
        variables="global",
        data="all",
        optimizer=client_optimizer,
        epochs=epochs,
        max_steps=max_steps,
    )
    return Algorithm(
        name="fed_rep",
        phases=(head, representation),
        local_variables="kept",
        weighting=weighting,
        max_update_norm=max_update_norm,
    )

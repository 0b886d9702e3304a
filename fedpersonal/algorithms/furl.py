"""Federated User Representation Learning.

Bui et al., "Federated User Representation Learning", 2019 (arXiv 1909.12535), section 3.5: private
variables, such as a user's embedding, are kept by the user and trained jointly with the federated
ones. The separate optimizer of the private variables is an addition of ours.
"""

from __future__ import annotations

from typing import Any

from fedpersonal.algorithm import Algorithm, GradientPhase


def furl(
    *,
    client_optimizer: Any,
    local_optimizer: Any = None,
    epochs: int = 1,
    max_steps: int | None = None,
    weighting: str = "num_examples",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns the one phase of FURL: all variables, jointly, on all of the client's data.

    Args:
        client_optimizer: Optimizer of the federated variables.
        local_optimizer: Another one for the private variables, or None for the same.
        epochs: Passes over the client's data.
        max_steps: Bound on the steps of all epochs.
        weighting: `num_examples` (c_i in equation 4) or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.
    """
    phase = GradientPhase(
        variables="all",
        data="all",
        optimizer=client_optimizer,
        optimizers={"local": local_optimizer} if local_optimizer else {},
        epochs=epochs,
        max_steps=max_steps,
    )
    return Algorithm(
        name="furl",
        phases=(phase,),
        local_variables="kept",
        weighting=weighting,
        max_update_norm=max_update_norm,
    )

"""Federated User Representation Learning.

Bui et al., "Federated User Representation Learning", 2019 (arXiv 1909.12535), section 3.5: private
variables, such as a user's embedding, are kept by the user and trained jointly with the federated
ones.

Departures: local variables may have an optimizer of their own, and a bound on what a round changes
in them; users who took no part rebuild them, where the paper has no method for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpersonal.algorithm import Algorithm, GradientPhase
from fedpersonal.algorithms.method import KeepingOptions, Layers, Method

if TYPE_CHECKING:
    import tensorflow_federated as tff


def furl(
    *,
    client_optimizer: tff.learning.optimizers.Optimizer,
    local_optimizer: tff.learning.optimizers.Optimizer | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: str = "num_examples",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns the one phase of FURL: all variables, jointly, on all of the client's data.

    Args:
        client_optimizer: Optimizer of the federated variables.
        local_optimizer: Another one for the local variables, or None for the same.
        local_epochs: Passes over the client's data.
        max_local_steps: Bound on the steps of all epochs.
        weighting: `num_examples` (c_i in equation 4) or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.
    """
    others = {"local": local_optimizer} if local_optimizer else {}
    phase = GradientPhase("all", "all", client_optimizer, local_epochs, max_local_steps, others)
    return Algorithm("furl", (phase,), "kept", weighting, max_update_norm)


def build(options: KeepingOptions, layers: Layers) -> Algorithm:
    """Returns FURL as options describe it."""
    del layers
    algorithm = furl(**options.local_work(), local_optimizer=options.local_optimizer())
    return options.settle(algorithm)


METHODS = (Method("furl", "FURL", build, KeepingOptions, local_part="embedding"),)

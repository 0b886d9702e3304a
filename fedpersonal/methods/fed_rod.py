"""A shared head for all clients, and a local head that each client adds to it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification",
ICLR 2022 (arXiv 2107.00778), section 4: the shared model and its generic head are trained and
averaged. Each client then trains a local head on the shared representation of its data, and
predicts with the sum of both heads' outputs. The shared model alone serves any client.

Departures: local heads are trained after the shared model instead of at the same time, so that the
two gradients of a round are independent. The sum of two linear heads is computed as one head whose
weights are the sum of theirs. The generic head has the task's loss, not a balanced one.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import PersonalCopies
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import Phase


class FedRod(
    Method,
    name="fed_rod",
    title="FedRoD",
    extra_options=KeepingOptions,
    local_variables="kept",
    required_layers=("shared_head",),
):
    """FedRoD: a phase of the shared model, then one of the local head."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase of the shared model and that of the local head."""
        local = self.optimizer("local") or self.optimizer("client")
        return self.phase("global"), self.phase("personal", optimizer=local)

    def personal(self) -> PersonalCopies:
        """Returns the offset that a client adds to the head."""
        return PersonalCopies(self.layers.head, role="offset")

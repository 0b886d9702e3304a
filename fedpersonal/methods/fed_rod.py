"""A shared head that serves everybody, and beside it an own one that each client adds to it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification",
ICLR 2022 (arXiv 2107.00778), section 4: the shared model and its generic head are trained and
averaged; then each client trains a head of its own, on what the shared layers make of its data, and
predicts with the sum of both heads' outputs. The shared model alone is for anybody.

Departures: own heads are trained after the shared model instead of beside it, so that a round's
gradients are clean of each other; the sum of two linear heads' outputs is that of a head whose
weights are their sum, which is how it is computed. The generic head has the task's loss, not a
balanced one.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import PersonalCopies
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import Phase


class FedRod(
    Method,
    name="fed_rod",
    title="FedRoD",
    reads=KeepingOptions,
    local_variables="kept",
    needs=("shared_head",),
):
    """What a client of FedRoD does."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase of the shared model and that of the client's own head."""
        own = self.optimizer("local") or self.optimizer("client")
        return self.phase("global"), self.phase("personal", optimizer=own)

    def personal(self) -> PersonalCopies:
        """Returns what a client adds to the head."""
        return PersonalCopies(self.layers.head, role="offset")

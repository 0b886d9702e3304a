"""A regulariser that each client bends, so that local optima agree with the global one.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021 (arXiv 2111.04263),
Algorithm 1: a client minimises its loss - <g, w> + alpha / 2 times the squared distance from what
the server sent, and then moves g by -alpha times the distance. The server adds to the mean of
clients' models -h / alpha, where h sums up, over rounds, -alpha times the distances over the number
of all clients.

Departures: the mean is weighted by examples unless `weighting` is `uniform`. `max_update_norm`
bounds the update of the model, and not what moves g and h. All clients are those that may be
drawn: `min_examples` leaves the others out, while a client that is late in every round counts with
distances of 0. Rows of tables that are one client's each have no g.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import Assignment, PersonalCopies
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import Method
from fedpersonal.methods.phases import Phase
from fedpersonal.options import option


class FedDyn(
    Method,
    name="fed_dyn",
    title="FedDyn",
    local_variables="kept",
    copies=PersonalCopies(role="state"),
    server_optimizer="sgd",
    server_remembers=True,
):
    """What a client of FedDyn does. The paper's server has SGD of rate 1."""

    feddyn_alpha: float = option(0.1, "fed_dyn: weight alpha of the dynamic regulariser.", above=0)

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, pulled to what was sent and corrected by g."""
        return (self.phase("global", proximal=self.feddyn_alpha, corrections={"personal": -1.0}),)

    def assignments(self) -> tuple[Assignment, ...]:
        """Returns the client's g, from which the distance is taken alpha times."""
        terms = {"personal": 1.0, "shared": -self.feddyn_alpha, "sent": self.feddyn_alpha}
        return (Assignment("personal", terms),)


FedDynFinetuning = FedDyn.finetuned()


fed_dyn = constructor(FedDyn, optimizers=None)

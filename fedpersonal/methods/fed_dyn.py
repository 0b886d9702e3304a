"""A dynamic regulariser for each client, which aligns local optima with the global one.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021 (arXiv 2111.04263),
Algorithm 1: a client minimises its loss - <g, w> + alpha / 2 times the squared distance from the
shared weights, and then moves g by -alpha times the distance. The server adds -h / alpha to the
mean of clients' models. Here h is the sum over rounds and clients of -alpha times the distances,
divided by the number of all clients.

Departures: the mean is weighted by examples unless `weighting` is `uniform`. `max_update_norm`
bounds the update of the model, but not the changes of g and h. "All clients" are those that can be
sampled: `min_examples` excludes the others, while a client that is late in every round counts with
distances of 0. Per-client rows of tables have no g.
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
    server_has_memory=True,
):
    """FedDyn: one regularised phase. The paper's server optimizer is SGD of rate 1."""

    feddyn_alpha: float = option(0.1, "fed_dyn: weight alpha of the dynamic regulariser.", above=0)

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, pulled towards the shared weights and corrected by g."""
        return (self.phase("global", proximal=self.feddyn_alpha, corrections={"personal": -1.0}),)

    def assignments(self) -> tuple[Assignment, ...]:
        """Returns the assignment of the client's g, which subtracts alpha times the distance."""
        terms = {"personal": 1.0, "shared": -self.feddyn_alpha, "sent": self.feddyn_alpha}
        return (Assignment("personal", terms),)


FedDynFinetuning = FedDyn.finetuned()


fed_dyn = constructor(FedDyn, optimizers=None)

"""Control variates against the drift of clients whose data differ.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020
(arXiv 1910.06378), Algorithm 1, option II: to the gradient of each local step, c - c_i is added,
the server's control variate minus the client's, which both estimate a mean gradient. Client i keeps
c_i + (x - y_i) / (K * rate) - c after K steps from x to y_i, and sends the change of it beside that
of the model; the server's c moves by the sum of changes over the number of all clients.

Departures: the mean of models is weighted by examples unless `weighting` is `uniform`; c is the
mean of all clients' c_i in either case. All clients are those that may be drawn: `min_examples`
leaves the others out, while a client that is late in every round counts with a c_i of 0.
`max_update_norm` bounds the update of the model alone.
Rows of tables that are one client's each have no control variate.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import Assignment, PersonalCopies
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import Method
from fedpersonal.methods.phases import Phase


class Scaffold(
    Method,
    name="scaffold",
    title="SCAFFOLD",
    local_variables="kept",
    copies=PersonalCopies(role="state", has_server_state=True),
):
    """What a client of SCAFFOLD does; its client optimizer is plain SGD."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, whose gradients are corrected."""
        return (self.phase("global", corrections={"server": 1.0, "personal": -1.0}),)

    def assignments(self) -> tuple[Assignment, ...]:
        """Returns the client's control variate, and the server's as this client would have it."""
        own = Assignment("personal", {"personal": 1.0, "server": -1.0, "slope": 1.0})
        return own, Assignment("server", {"slope": 1.0})


ScaffoldFinetuning = Scaffold.finetuned()


scaffold = constructor(Scaffold, optimizers=None)

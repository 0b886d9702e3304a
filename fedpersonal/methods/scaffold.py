"""Control variates against the drift of clients with heterogeneous data.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020
(arXiv 1910.06378), Algorithm 1, option II: a client adds c - c_i to the gradient of each local
step, the server's control variate minus the client's. Both estimate a mean gradient. After K steps
from x to y_i, client i keeps c_i + (x - y_i) / (K * rate) - c, and sends its change along with that
of the model. The server's c moves by the sum of the changes, divided by the number of all clients.

Departures: the mean of models is weighted by examples unless `weighting` is `uniform`; c is the
mean of all clients' c_i in either case. "All clients" are those that can be sampled: `min_examples`
excludes the others, while a client that is late in every round counts with a c_i of 0.
`max_update_norm` bounds only the update of the model. Per-client rows of tables have no control
variate.
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
    """SCAFFOLD: one phase with corrected gradients. The client optimizer is plain SGD."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, whose gradients are corrected."""
        return (self.phase("global", corrections={"server": 1.0, "personal": -1.0}),)

    def assignments(self) -> tuple[Assignment, ...]:
        """Returns the assignments of the client's control variate and of the server's."""
        local = Assignment("personal", {"personal": 1.0, "server": -1.0, "slope": 1.0})
        return local, Assignment("server", {"slope": 1.0})


ScaffoldFinetuning = Scaffold.finetuned()


scaffold = constructor(Scaffold, optimizers=None)

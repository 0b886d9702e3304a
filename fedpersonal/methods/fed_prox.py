"""FedAvg with a proximal term, which keeps clients near the weights that the server sent.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv 1812.06127),
Algorithm 2.

Departures: all clients make the same number of epochs; in the paper, slow clients may make fewer.
"""

from __future__ import annotations

from fedpersonal.methods.method import Method
from fedpersonal.methods.phases import Phase
from fedpersonal.options import option


class FedProx(Method, name="fed_prox", title="FedProx"):
    """FedProx: one phase with the proximal term."""

    proximal: float = option(0.1, "Weight mu of FedProx' term.", at_least=0)

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, which is pulled towards the shared weights."""
        return (self.phase(proximal=self.proximal),)

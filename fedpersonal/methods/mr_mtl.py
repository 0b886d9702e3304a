"""Models of each client's own, held near their mean: mean-regularised multi-task learning.

Liu et al., "On Privacy and Personalization in Cross-Silo Federated Learning", NeurIPS 2022 (arXiv
2206.07902): client k goes on with its own model w_k, on its loss + lambda / 2 times the squared
distance from the mean that the server sent, and the server averages what all w_k have come to.
What is sent are the personal models themselves: the paper hides examples in them by noise.

Departures: it is made for silos that all take part in each round; here, the mean is that of those
who do. Of a table whose rows are one client's each there are no copies: the row is trained as it
is.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import PersonalCopies
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import Method, PullOptions
from fedpersonal.methods.phases import Phase


class MrMtl(Method, name="mr_mtl", title="MR-MTL", reads=PullOptions, local_variables="kept"):
    """What a client of MR-MTL does. The paper's mean has `uniform` weights."""

    copies = PersonalCopies(are_sent=True)

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase; a pull of 0 is local training, and much is FedAvg."""
        return (self.phase(proximal=self.pull),)


mr_mtl = constructor(MrMtl, optimizers=None)

"""Personal models regularised towards their mean: mean-regularised multi-task learning.

Liu et al., "On Privacy and Personalization in Cross-Silo Federated Learning", NeurIPS 2022 (arXiv
2206.07902): client k resumes training of its personal model w_k, on its loss + lambda / 2 times the
squared distance from the mean that the server sent. The server averages the trained w_k. Clients
send the personal models themselves: the paper hides examples in them by noise.

Departures: in the paper, all silos take part in each round; here, the mean is over the clients of
the round. There are no copies of a table with a row for each client: the row itself is trained.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import PersonalCopies
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import Method, PullOptions
from fedpersonal.methods.phases import Phase


class MrMtl(
    Method, name="mr_mtl", title="MR-MTL", extra_options=PullOptions, local_variables="kept"
):
    """MR-MTL: one phase moves the personal copy. The paper's mean has `uniform` weights."""

    copies = PersonalCopies(are_sent=True)

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase; a pull of 0 gives local training, a large pull FedAvg."""
        return (self.phase(proximal=self.pull),)


mr_mtl = constructor(MrMtl, optimizers=None)

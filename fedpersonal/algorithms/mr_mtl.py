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

import dataclasses
from typing import Any

from fedpersonal.algorithm import Algorithm, PersonalCopies
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.method import Layers, Method, PullOptions


def mr_mtl(*, pull: float = 1.0, **options: Any) -> Algorithm:
    """Returns the one phase of MR-MTL.

    Args:
        pull: Weight of the client's pull to the mean, lambda: 0 is local training, and much is
            FedAvg.
        **options: Of `fed_avg`; `max_update_norm` bounds what a client sends. The paper's mean has
            `uniform` weights.
    """
    copies = PersonalCopies(are_sent=True)
    return dataclasses.replace(
        fed_avg(**options, proximal=pull), name="mr_mtl", local_variables="kept", personal=copies
    )


def build(options: PullOptions, layers: Layers) -> Algorithm:
    """Returns MR-MTL as options describe it."""
    del layers
    return options.settle(mr_mtl(**options.local_work(), pull=options.pull))


METHODS = (Method("mr_mtl", "MR-MTL", build, PullOptions, has_copies=True),)

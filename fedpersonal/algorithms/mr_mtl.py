"""Models of each client's own, held near their mean: mean-regularised multi-task learning.

Liu et al., "On Privacy and Personalization in Cross-Silo Federated Learning", NeurIPS 2022 (arXiv
2206.07902): client k goes on with its own model w_k, on its loss + lambda / 2 times the squared
distance from the mean that the server sent, and the server averages what all w_k have come to. It
is made for silos that all take part in each round; here, the mean is that of those who do. Of a
table whose rows are one client's each there are no copies: the row is trained as it is. What is
sent are the personal models themselves: the paper hides examples in them by noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpersonal.algorithm import Algorithm, GradientPhase, PersonalCopies
from fedpersonal.algorithms.method import Layers, Method, PullOptions

if TYPE_CHECKING:
    import tensorflow_federated as tff


def mr_mtl(
    *,
    client_optimizer: tff.learning.optimizers.Optimizer,
    pull: float = 1.0,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: str = "num_examples",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns the one phase of MR-MTL.

    Args:
        client_optimizer: Optimizer of the client's model.
        pull: Weight of its pull to the mean, lambda: 0 is local training, and much is FedAvg.
        local_epochs: Passes over the client's data.
        max_local_steps: Bound on the steps of all epochs.
        weighting: Of the mean: `num_examples`, or `uniform` as in the paper.
        max_update_norm: Bound on the norm of what a client sends, or None.
    """
    phase = GradientPhase(
        "all", "all", client_optimizer, local_epochs, max_local_steps, proximal=pull
    )
    copies = PersonalCopies(are_sent=True)
    return Algorithm("mr_mtl", (phase,), "kept", weighting, max_update_norm, personal=copies)


def build(options: PullOptions, layers: Layers) -> Algorithm:
    """Returns MR-MTL as options describe it."""
    del layers
    return options.settle(mr_mtl(**options.local_work(), pull=options.pull))


METHODS = (Method("mr_mtl", "MR-MTL", build, PullOptions, has_copies=True),)

"""The shared model, and beside it the labels of a client's own examples that are nearest.

Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local Memorization", ICML
2022 (arXiv 2111.09360), section 3: the shared model is trained by FedAvg. A client keeps what the
shared layers below the head make of its examples, and their labels. It predicts with lambda * p +
(1 - lambda) * q, where q is what the shared model makes likely, and p what the k nearest of its
examples do, each by its label, in proportion to exp(-distance).

Departures: lambda is one for all clients, where in the paper each can choose its own by validation
examples. Distances are squared ones, divided by the number of their dimensions and by sigma, as in
the authors' code, and not Euclidean as in the paper. A client remembers all examples that it has.
"""

from __future__ import annotations

from fedpersonal.methods.fed_avg import FedAvg
from fedpersonal.methods.phases import NeighboursPhase, Phase
from fedpersonal.options import option


class KnnPer(
    FedAvg,
    name="knn_per",
    title="kNN-Per",
    trains_as="fed_avg",
    needs=("shared_head",),
    server_optimizer=None,
):
    """FedAvg, and neighbours."""

    neighbours: int = option(10, "knn_per: k, of the nearest own examples.", at_least=1)
    neighbour_weight: float = option(
        0.5, "knn_per: lambda, their weight beside the shared model.", at_least=0, at_most=1
    )
    neighbour_scale: float = option(1.0, "knn_per: sigma, by which distances are divided.", above=0)

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns what has a client remember its examples."""
        options = self.neighbours, self.neighbour_weight, self.neighbour_scale
        return (NeighboursPhase(self.layers.head, *options),)

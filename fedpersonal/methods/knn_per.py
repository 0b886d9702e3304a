"""The shared model, combined with the labels of the client's nearest examples.

Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local Memorization", ICML
2022 (arXiv 2111.09360), section 3: the shared model is trained by FedAvg. A client stores the
representations of its examples below the head, and their labels. It predicts with lambda * p +
(1 - lambda) * q. The shared model predicts q; p are the labels of the k nearest examples, weighted
in proportion to exp(-distance).

Departures: all clients have the same lambda; in the paper, each client can choose it on validation
examples. Distances are squared, divided by the number of dimensions and by sigma, as in the
authors' code, and not Euclidean as in the paper. A client stores all its examples.
"""

from __future__ import annotations

from fedpersonal.methods.fed_avg import FedAvg
from fedpersonal.methods.phases import NeighboursPhase, Phase
from fedpersonal.options import option


class KnnPer(
    FedAvg,
    name="knn_per",
    title="kNN-Per",
    same_rounds_as="fed_avg",
    required_layers=("shared_head",),
    server_optimizer=None,
):
    """FedAvg, then predictions with neighbours."""

    neighbours: int = option(10, "knn_per: number k of nearest examples of the client.", at_least=1)
    neighbour_weight: float = option(
        0.5,
        "knn_per: weight lambda of the neighbours, against the shared model.",
        at_least=0,
        at_most=1,
    )
    neighbour_scale: float = option(1.0, "knn_per: divisor sigma of distances.", above=0)

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns the phase that stores a client's examples."""
        options = self.neighbours, self.neighbour_weight, self.neighbour_scale
        return (NeighboursPhase(self.layers.head, *options),)

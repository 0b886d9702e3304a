"""Item embeddings that are a shared table plus one of each client's own.

Li et al., "Federated Recommendation with Additive Personalization", ICLR 2024 (arXiv 2301.09109),
Algorithm 1: a client's score of an item is that of the sum of the shared vector C and its own D. It
trains both, and its score function, on the loss - lambda * |D - C|^2, so that the tables differ, +
mu * |C|_1, so that the shared one is sparse. The server averages C; D stays.

Departures: both terms are of the items of a batch instead of all, as sums over a vector's numbers,
and their weights do not grow from round to round (nor do they in the authors' code). D starts at 0.
"""

from __future__ import annotations

from typing import Any

from fedpersonal.methods.furl import Furl
from fedpersonal.methods.method import KeepingOptions, Layers
from fedpersonal.options import option


class FedRapOptions(KeepingOptions):
    """What a client of FedRAP does."""

    item_difference: float = option(
        0.0, "fedrap: weight lambda of own item vectors' distance from shared ones.", at_least=0
    )
    item_sparsity: float = option(
        0.0, "fedrap: weight mu of the shared item vectors' absolute values.", at_least=0
    )


class FedRap(Furl, name="fedrap", title="FedRAP", reads=FedRapOptions, needs=("own_items",)):
    """What a client of FedRAP does: that of FURL, with a table of items that is its own, too."""

    @classmethod
    def local_layers(cls, options: Any, layers: Layers) -> tuple[str, ...]:
        """Returns the user's embedding and its own table of items."""
        return (*super().local_layers(options, layers), *layers.own_items)

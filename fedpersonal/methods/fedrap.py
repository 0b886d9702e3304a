"""Item embeddings that are the sum of a shared table and a local table of each client.

Li et al., "Federated Recommendation with Additive Personalization", ICLR 2024 (arXiv 2301.09109),
Algorithm 1: a client scores an item by the sum of the shared vector C and its local vector D. It
trains both, and its score function, on the loss - lambda * |D - C|^2 + mu * |C|_1. The first term
makes the tables differ, the second makes the shared one sparse. The server averages C; D stays on
the client.

Departures: both terms cover the items of a batch instead of all items, as sums over a vector's
numbers. Their weights do not grow from round to round (nor do they in the authors' code). D starts
at 0.
"""

from __future__ import annotations

from typing import Any

from fedpersonal.methods.furl import Furl
from fedpersonal.methods.method import KeepingOptions, Layers
from fedpersonal.options import option


class FedRapOptions(KeepingOptions):
    """Options of FedRAP."""

    item_difference: float = option(
        0.0, "fedrap: weight lambda of local item vectors' distance from shared ones.", at_least=0
    )
    item_sparsity: float = option(
        0.0, "fedrap: weight mu of the shared item vectors' absolute values.", at_least=0
    )


class FedRap(
    Furl,
    name="fedrap",
    title="FedRAP",
    extra_options=FedRapOptions,
    required_layers=("per_client_items",),
):
    """FedRAP: FURL with a local table of items."""

    @classmethod
    def local_layers(cls, options: Any, layers: Layers) -> tuple[str, ...]:
        """Returns the user's embedding and the local table of items."""
        return (*super().local_layers(options, layers), *layers.per_client_items)

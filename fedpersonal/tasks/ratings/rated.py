"""The items that a user has rated, beside each of its ratings."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from fedpersonal.data.client_dataset import ClientDataset


def add_rated(dataset: ClientDataset, known: ClientDataset, *, places: int) -> ClientDataset:
    """Gives each rating what its user has rated in another data set of the same users.

    Args:
        dataset: Ratings.
        known: Ratings with the feature "item", of the same clients: what may be known of them.
        places: How many items at most. Of a user with more, hashes of its name and the items'
            numbers choose some: the same ones for all of its ratings, whatever others have rated.

    Returns:
        The first data set with the features "rated", int32 (n, places), and "num_rated", int32
        (n,), how many of these places count. The others repeat the first of them.

    Raises:
        ValueError: The two have different clients.
    """
    if not np.array_equal(dataset.client_ids, known.client_ids):
        raise ValueError("dataset and known must have the same clients, in the same order.")
    items = known.features["item"]
    order = np.lexsort((_hashes(known), known.example_clients))
    numbers = np.minimum(known.counts, places)
    rated = np.zeros([known.num_clients, places], np.int32)
    has = np.flatnonzero(numbers)
    place = np.arange(places) * (np.arange(places) < numbers[has, np.newaxis])
    rated[has] = items[order[known.offsets[has, np.newaxis] + place]]
    of_users = {"rated": rated, "num_rated": numbers.astype(np.int32)}
    own = {name: column[dataset.example_clients] for name, column in of_users.items()}
    return dataclasses.replace(dataset, features={**dataset.features, **own})


def _hashes(dataset: ClientDataset) -> np.ndarray:
    """Returns a hash of each rating's client and item, uint64 (n,)."""
    clients = pd.util.hash_array(dataset.client_ids, categorize=False)
    items = pd.util.hash_array(dataset.features["item"].astype(np.uint64))
    return pd.util.hash_array(clients[dataset.example_clients] ^ items)

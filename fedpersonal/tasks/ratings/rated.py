"""The items that a user has rated, beside each of its ratings."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset


def add_rated(dataset: ClientDataset, known: ClientDataset, *, places: int) -> ClientDataset:
    """Gives each rating what its user has rated in another data set of the same users.

    Args:
        dataset: Ratings.
        known: Ratings with the feature "item", of the same clients: what may be known of them.
        places: How many items at most. Where a user has more, they are drawn, alike for all of its
            ratings and in every run.

    Returns:
        The first data set with the features "rated", int32 (n, places), and "num_rated", int32
        (n,), how many of these places count.
    """
    order = np.random.default_rng(13).random(known.num_examples)
    rows = np.lexsort((order, known.example_clients))
    rows = rows[known.example_positions < places]  # The clients' rows are in their places still.
    numbers = np.minimum(known.counts, places)
    rated = np.zeros([known.num_clients, places], np.int32)
    rated[np.arange(places) < numbers[:, np.newaxis]] = known.features["item"][rows]
    of_users = {"rated": rated, "num_rated": numbers.astype(np.int32)}
    own = {name: column[dataset.example_clients] for name, column in of_users.items()}
    return dataclasses.replace(dataset, features={**dataset.features, **own})

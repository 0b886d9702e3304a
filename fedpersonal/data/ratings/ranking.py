"""One held-out item per client among items it never rated, for hit rate and NDCG."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from fedpersonal.data.checks import check_count, check_counts
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.errors import UserError, quoted


def hold_out_candidates(
    dataset: ClientDataset, *, num_items: int, num_negatives: int = 99, seed: int, ordered: bool
) -> tuple[ClientDataset, np.ndarray]:
    """Holds out one example of each client and samples items that the client did not rate.

    What a client gets depends on the seed, its name and its own examples alone.

    Args:
        dataset: The examples, each client's in time order if `ordered`, with the feature "item",
            (num_examples,) integers in [0, num_items).
        num_items: How many items there are.
        num_negatives: How many unrated items each client gets, distinct.
        seed: >= 0.
        ordered: True to hold out each client's last example, False for a random one.

    Returns:
        remaining: The dataset without the held-out examples; every client stays.
        candidates: (num_clients, 1 + num_negatives) int32 items, the held-out one first.

    Raises:
        UserError: If an item is out of range, or a client has no example to hold out or fewer
            unrated items than `num_negatives`.
    """
    if (dataset.counts == 0).any():
        client_id = dataset.client_ids[dataset.counts.argmin()]
        raise UserError(f"client {quoted(client_id)} has no example to hold out")
    candidates = np.empty((dataset.num_clients, 1 + num_negatives), np.int32)
    held_out = np.empty(dataset.num_clients, np.int64)
    for i, (rng, unrated) in enumerate(_unrated(dataset, num_items, num_negatives, seed)):
        start, end = dataset.offsets[i : i + 2]
        held_out[i] = end - 1 if ordered else rng.integers(start, end)
        candidates[i, 0] = dataset.features["item"][held_out[i]]
        candidates[i, 1:] = rng.choice(unrated, num_negatives, replace=False)
    keep = np.ones(dataset.num_examples, bool)
    keep[held_out] = False
    return dataset.filter_examples(keep), candidates


def sample_unrated(
    dataset: ClientDataset, *, num_items: int, num_negatives: int = 99, seed: int
) -> np.ndarray:
    """Samples items that a client did not rate, (num_clients, num_negatives) int32, distinct.

    They are those of `hold_out_candidates` with `ordered`, which says what the arguments are and
    what is refused.
    """
    drawn = [
        rng.choice(unrated, num_negatives, replace=False)
        for rng, unrated in _unrated(dataset, num_items, num_negatives, seed)
    ]
    return np.array(drawn, np.int32).reshape(dataset.num_clients, num_negatives)


def _unrated(
    dataset: ClientDataset, num_items: int, num_negatives: int, seed: int
) -> Iterator[tuple[np.random.Generator, np.ndarray]]:
    """Yields each client's generator, and the items that it did not rate."""
    check_count("num_items", num_items, minimum=1)
    check_counts(0, num_negatives=num_negatives, seed=seed)
    items = dataset.features["item"]
    wrong = (items < 0) | (items >= num_items)
    if wrong.any():
        raise UserError(f"items must be in [0, num_items={num_items}), got {items[wrong][0]}")
    is_unrated = np.ones(num_items, bool)
    for i, client_id in enumerate(dataset.client_ids):
        rated = items[slice(*dataset.offsets[i : i + 2])]
        is_unrated[rated] = False
        unrated = np.flatnonzero(is_unrated)
        is_unrated[rated] = True  # Cheaper than a new array for every client.
        if unrated.size < num_negatives:
            raise UserError(
                f"client {quoted(client_id)} has {unrated.size} unrated items of {num_items},"
                f" too few for num_negatives={num_negatives}"
            )
        yield np.random.default_rng([seed, zlib.crc32(str(client_id).encode())]), unrated


def as_clients(dataset: ClientDataset, candidates: np.ndarray) -> ClientDataset:
    """Returns candidates as clients' examples: the first of each client is labelled 1, others 0.

    Args:
        dataset: The clients, of whom each has an example, with the feature "user".
        candidates: (num_clients, n) items.
    """
    width = candidates.shape[1]
    users = dataset.features["user"][dataset.offsets[:-1]]
    return ClientDataset(
        client_ids=dataset.client_ids,
        offsets=np.arange(0, candidates.size + 1, width),
        features={"item": candidates.reshape(-1), "user": np.repeat(users, width)},
        labels=np.tile(np.arange(width) == 0, len(candidates)).astype(np.float32),
    )

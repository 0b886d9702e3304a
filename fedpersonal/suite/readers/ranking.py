"""Candidates for hit rate and NDCG: a client's held-out item among items it never rated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import check_count, check_counts
from fedpersonal.errors import UserError, quoted
from fedpersonal.randomness import Purpose, generator, name_to_number

CUTOFF = 10
"""The number of first places that hit rate and NDCG consider."""

NUM_SAMPLED = 99
"""The number of sampled items that a client did not rate; all, if fewer exist."""

MIN_UNRATED = CUTOFF
"""The least number of unrated items of a ranked client: with fewer, any item is in the top ten."""


def candidates_suffix(num_rated: np.ndarray, num_items: int) -> str:
    """Returns the suffix of metrics' names for the number of candidates.

    Args:
        num_rated: The number of items that each client has rated, integers (num_clients,).
        num_items: The number of items.

    Returns:
        "" if each ranked client has 1 + `NUM_SAMPLED` candidates, else such as `_of_50` or, if
        clients differ, `_of_12_to_100`.
    """
    unrated = num_items - num_rated
    counts = 1 + np.minimum(unrated[unrated >= MIN_UNRATED], NUM_SAMPLED)
    if not counts.size or counts.min() > NUM_SAMPLED:
        return ""
    least, most = counts.min(), counts.max()
    return f"_of_{least}" if least == most else f"_of_{least}_to_{most}"


def hold_out_candidates(
    dataset: ClientDataset, *, rated: ClientDataset, num_items: int, seed: int, ordered: bool
) -> tuple[ClientDataset, list[np.ndarray]]:
    """Holds out one example of each client and samples items that the client did not rate.

    A client's candidates depend only on the seed, its name and its examples.

    Args:
        dataset: The examples, each client's in time order if `ordered`, with the feature "item",
            (num_examples,) integers in [0, num_items).
        rated: All ratings of the same clients; `dataset` may be a part of them.
        num_items: The number of items.
        seed: >= 0.
        ordered: True to hold out each client's last example, False for a random one.

    Returns:
        remaining: The dataset without the held-out examples; every client stays.
        candidates: Each client's items, int32 (1 + n,), the held-out item first; empty for a client
            with fewer than `MIN_UNRATED` unrated items.

    Raises:
        UserError: If an item is out of range, or a client has no example to hold out.
    """
    if (dataset.counts == 0).any():
        client_id = dataset.client_ids[dataset.counts.argmin()]
        raise UserError(f"client {quoted(client_id)} has no example to hold out")
    held_out = np.empty(dataset.num_clients, np.int64)
    negatives = []
    for i, (rng, unrated) in enumerate(_unrated(rated, num_items, seed)):
        start, end = dataset.offsets[i : i + 2]
        held_out[i] = end - 1 if ordered else rng.integers(start, end)
        negatives.append(_sample(rng, unrated))
    keep = np.ones(dataset.num_examples, bool)
    keep[held_out] = False
    items = dataset.features["item"][held_out]
    return dataset.filter_examples(keep), prepend_items(items, negatives)


def sample_unrated(dataset: ClientDataset, *, num_items: int, seed: int) -> list[np.ndarray]:
    """Samples up to `NUM_SAMPLED` items that a client did not rate, int32 (n,), distinct.

    The items, arguments and errors are those of `hold_out_candidates` with `ordered`. A client
    with fewer than `MIN_UNRATED` unrated items has none.
    """
    return [_sample(rng, unrated) for rng, unrated in _unrated(dataset, num_items, seed)]


def prepend_items(items: np.ndarray, negatives: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Puts each client's item, (num_clients,), before its negatives; empty without negatives."""
    pairs = zip(items.astype(np.int32), negatives)
    return [np.append(item, others) if others.size else others for item, others in pairs]


def _sample(rng: np.random.Generator, unrated: np.ndarray) -> np.ndarray:
    if unrated.size < MIN_UNRATED:
        return np.empty(0, np.int32)
    return rng.choice(unrated, min(NUM_SAMPLED, unrated.size), replace=False).astype(np.int32)


def _unrated(
    dataset: ClientDataset, num_items: int, seed: int
) -> Iterator[tuple[np.random.Generator, np.ndarray]]:
    """Yields each client's random generator, and the items that it did not rate."""
    check_count("num_items", num_items, minimum=1)
    check_counts(0, seed=seed)
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
        yield generator(Purpose.CANDIDATES, seed, client=name_to_number(client_id)), unrated


def candidates_as_clients(
    dataset: ClientDataset, candidates: Sequence[np.ndarray] | np.ndarray
) -> ClientDataset:
    """Returns candidates as clients' examples: each client's first is labelled 1, others 0.

    Args:
        dataset: The clients, each with an example, with the feature "user".
        candidates: Each client's items, int32 (n,), n >= 0.
    """
    counts = np.array([len(items) for items in candidates], np.int64)
    offsets = np.append(0, np.cumsum(counts))
    labels = np.zeros(offsets[-1], np.float32)
    labels[offsets[:-1][counts > 0]] = 1
    users = dataset.features["user"][dataset.offsets[:-1]]
    return ClientDataset(
        client_ids=dataset.client_ids,
        offsets=offsets,
        features={
            "item": np.concatenate([np.empty(0, np.int32), *candidates]),
            "user": np.repeat(users, counts),
        },
        labels=labels,
    )

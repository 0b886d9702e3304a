"""One held-out item per client among items it never rated, for hit rate and NDCG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import check_count, check_counts
from fedpersonal.draws import Purpose, generator, number_of
from fedpersonal.errors import UserError, quoted

AT = 10
"""Hit rate and NDCG look at so many places."""

SAMPLED = 99
"""So many items that a client did not rate are drawn, or all if it has left fewer."""

FEWEST = AT
"""A client that has left fewer is not ranked: whatever it is asked would be among the best ten."""


def candidates_suffix(num_rated: np.ndarray, num_items: int) -> str:
    """Returns how names of metrics say among how many items a held-out one is ranked.

    Args:
        num_rated: How many items each client has rated, integers (num_clients,).
        num_items: How many items there are.

    Returns:
        Nothing where it is 1 + `SAMPLED` for all who are ranked; else such as `_of_50` or, where
        clients differ, `_of_12_to_100`.
    """
    unrated = num_items - num_rated
    counts = 1 + np.minimum(unrated[unrated >= FEWEST], SAMPLED)
    if not counts.size or counts.min() > SAMPLED:
        return ""
    few, many = counts.min(), counts.max()
    return f"_of_{few}" if few == many else f"_of_{few}_to_{many}"


def hold_out_candidates(
    dataset: ClientDataset, *, rated: ClientDataset, num_items: int, seed: int, ordered: bool
) -> tuple[ClientDataset, list[np.ndarray]]:
    """Holds out one example of each client and samples items that the client did not rate.

    What a client gets depends on the seed, its name and its own examples alone.

    Args:
        dataset: The examples, each client's in time order if `ordered`, with the feature "item",
            (num_examples,) integers in [0, num_items).
        rated: All that the same clients have rated; `dataset` may be a part of it.
        num_items: How many items there are.
        seed: >= 0.
        ordered: True to hold out each client's last example, False for a random one.

    Returns:
        remaining: The dataset without the held-out examples; every client stays.
        candidates: Each client's items, int32 (1 + n,), the held-out one first; none for a client
            that has left fewer than `FEWEST` unrated.

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
    return dataset.filter_examples(keep), put_first(items, negatives)


def sample_unrated(dataset: ClientDataset, *, num_items: int, seed: int) -> list[np.ndarray]:
    """Samples up to `SAMPLED` items that a client did not rate, int32 (n,), distinct.

    They are those of `hold_out_candidates` with `ordered`, which says what the arguments are and
    what is refused; none for a client that has left fewer than `FEWEST`.
    """
    return [_sample(rng, unrated) for rng, unrated in _unrated(dataset, num_items, seed)]


def put_first(items: np.ndarray, negatives: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns each client's item, (num_clients,), before its negatives; nothing without any."""
    pairs = zip(items.astype(np.int32), negatives)
    return [np.append(item, own) if own.size else own for item, own in pairs]


def _sample(rng: np.random.Generator, unrated: np.ndarray) -> np.ndarray:
    if unrated.size < FEWEST:
        return np.empty(0, np.int32)
    return rng.choice(unrated, min(SAMPLED, unrated.size), replace=False).astype(np.int32)


def _unrated(
    dataset: ClientDataset, num_items: int, seed: int
) -> Iterator[tuple[np.random.Generator, np.ndarray]]:
    """Yields each client's generator, and the items that it did not rate."""
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
        yield generator(Purpose.CANDIDATES, seed, client=number_of(client_id)), unrated


def as_clients(
    dataset: ClientDataset, candidates: Sequence[np.ndarray] | np.ndarray
) -> ClientDataset:
    """Returns candidates as clients' examples: the first of each client is labelled 1, others 0.

    Args:
        dataset: The clients, of whom each has an example, with the feature "user".
        candidates: Each client's items, int32 (n,), perhaps none.
    """
    counts = np.array([len(own) for own in candidates], np.int64)
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

"""Splits of clients and of each client's examples: train, validation, test; support and query."""

from __future__ import annotations

import numpy as np

from fedpersonal.data.checks import check_count, check_fractions
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.parts import SPLITS, is_in_part, split_parts
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError, check_choice, counted

_FRACTIONS = (0.8, 0.1, 0.1)


def split_clients(
    num_clients: int,
    *,
    fractions: tuple[float, float, float] = _FRACTIONS,
    seed: int,
    purpose: Purpose = Purpose.SPLIT,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shuffles the clients and deals each to train, validation or test.

    Args:
        num_clients: How many clients there are.
        fractions: The parts for train, validation and test, which sum to 1.
        seed: >= 0.
        purpose: What tells these draws from others of the seed.

    Returns:
        Three arrays of client indices, int64, in shuffled order: disjoint, and together all.
    """
    num_clients = check_count("num_clients", num_clients)
    first, second, _ = check_fractions(fractions)
    rng = generator(purpose, check_count("seed", seed))
    bounds = np.rint(np.array([first, first + second]) * num_clients).astype(np.int64)
    train, validation, test = np.split(rng.permutation(num_clients), bounds)
    return train, validation, test


def split_examples(
    dataset: ClientDataset,
    *,
    fractions: tuple[float, float, float] = _FRACTIONS,
    seed: int,
    ordered: bool,
) -> tuple[ClientDataset, ClientDataset, ClientDataset]:
    """Splits each client's examples into train, validation and test; every client stays in all.

    A client's shares of test and validation are rounded, halves up; train takes the rest, and at
    least one example of any client that has one. In each part examples keep their order.

    Args:
        dataset: The examples, each client's in time order if `ordered`.
        fractions: The parts for train, validation and test, which sum to 1.
        seed: >= 0; without meaning if `ordered`.
        ordered: True for each client's last examples as test and those before as validation;
            False for random ones.
    """
    _, validation, test = check_fractions(fractions)
    from_end = places_from_end(dataset, seed=seed, ordered=ordered)
    counts = dataset.counts
    num_test = np.minimum(_round(counts * test), np.maximum(counts - 1, 0))
    num_validation = np.minimum(_round(counts * validation), np.maximum(counts - num_test - 1, 0))
    test_end = np.repeat(num_test, counts)
    validation_end = test_end + np.repeat(num_validation, counts)
    return (
        dataset.filter_examples(from_end >= validation_end),
        dataset.filter_examples((from_end >= test_end) & (from_end < validation_end)),
        dataset.filter_examples(from_end < test_end),
    )


def places_from_end(dataset: ClientDataset, *, seed: int, ordered: bool) -> np.ndarray:
    """Returns each example's place counted from its client's last, (num_examples,) int64.

    Args:
        dataset: The examples, each client's in time order if `ordered`.
        seed: >= 0; without meaning if `ordered`.
        ordered: Whether they are in their order, or in a random one.
    """
    rng = generator(Purpose.SPLIT, check_count("seed", seed))
    places = dataset.example_positions
    if not ordered:
        by_chance = np.lexsort((rng.random(dataset.num_examples), dataset.example_clients))
        places[by_chance] = places.copy()
    return np.repeat(dataset.counts, dataset.counts) - 1 - places


def split_support_query(
    dataset: ClientDataset, *, batch_size: int, split: str = "skip", support_share: float = 0.5
) -> tuple[ClientDataset, ClientDataset]:
    """Splits every client by batches, as training does, into support and query sets.

    Args:
        dataset: The clients.
        batch_size: Examples a batch, >= 1.
        split: `skip`: even batches support, odd ones query. `aggregated`: the first half and the
            second. An odd one out is in the support set.
        support_share: Share of the batches in the support set, as of `split_parts`.
    """
    check_choice("split_support_query", "split", split, ("skip", "aggregated"))
    is_query = _is_query(dataset, batch_size, split, support_share)
    return dataset.filter_examples(~is_query), dataset.filter_examples(is_query)


def count_query_examples(
    dataset: ClientDataset, *, batch_size: int, split: str = "skip", support_share: float = 0.5
) -> np.ndarray:
    """Counts the examples in each client's query set, (num_clients,) int64.

    Clients with a single batch have none, unless `split`, otherwise as of `split_support_query`, is
    `shared`, where all examples are in both sets.
    """
    check_choice("count_query_examples", "split", split, tuple(SPLITS))
    is_query = _is_query(dataset, batch_size, split, support_share)
    return np.bincount(dataset.example_clients[is_query], minlength=dataset.num_clients)


def check_query_sets(
    name: str,
    dataset: ClientDataset,
    *,
    batch_size: int,
    split: str = "skip",
    support_share: float = 0.5,
) -> None:
    """Raises a `UserError` if no client of the data called `name` has a query set."""
    counts = count_query_examples(
        dataset, batch_size=batch_size, split=split, support_share=support_share
    )
    if not counts.any():
        most = int(dataset.counts.max(initial=0))
        raise UserError(
            f"no client of {name} has a second batch, which query sets are made of: the most"
            f" examples that one has are {most}, and a batch holds {batch_size}"
        )


def check_num_clients(name: str, num_clients: int, *, minimum: int, advice: str = "") -> None:
    """Raises a `UserError` if the data called `name` have too few clients to split."""
    if num_clients < minimum:
        raise UserError(
            f"{name} has {counted(num_clients, 'users')}; at least {minimum} are needed to hold "
            f"some out. {advice}".rstrip()
        )


def _is_query(
    dataset: ClientDataset, batch_size: int, split: str, support_share: float
) -> np.ndarray:
    """Returns which examples are in a query set, (num_examples,) bool."""
    check_count("batch_size", batch_size, minimum=1)
    _, query = split_parts(split, support_share)
    num_batches = -(-dataset.counts // batch_size)
    batches = dataset.example_positions // batch_size
    return is_in_part(query, batches, num_batches[dataset.example_clients])


def _round(shares: np.ndarray) -> np.ndarray:
    return np.floor(shares + 0.5).astype(np.int64)

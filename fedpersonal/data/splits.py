"""Splits into train, validation and test: whole clients, or each client's own examples."""

from __future__ import annotations

import numpy as np

from fedpersonal.data.checks import check_count, check_fractions
from fedpersonal.data.client_dataset import ClientDataset

_FRACTIONS = (0.8, 0.1, 0.1)


def split_clients(
    num_clients: int, *, fractions: tuple[float, float, float] = _FRACTIONS, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shuffles the clients and deals each to train, validation or test.

    Args:
        num_clients: How many clients there are.
        fractions: The parts for train, validation and test, which sum to 1.
        seed: A whole number >= 0; the same seed gives the same split.

    Returns:
        Three arrays of client indices, int64, in shuffled order: disjoint, and together all.

    Raises:
        UserError: If an option is out of range.
    """
    num_clients = check_count("num_clients", num_clients)
    train, validation, _ = check_fractions(fractions)
    rng = np.random.Generator(np.random.PCG64(check_count("seed", seed)))
    bounds = np.rint(np.array([train, train + validation]) * num_clients).astype(np.int64)
    return tuple(np.split(rng.permutation(num_clients), bounds))


def split_examples(
    dataset: ClientDataset,
    *,
    fractions: tuple[float, float, float] = _FRACTIONS,
    seed: int,
    ordered: bool,
) -> tuple[ClientDataset, ClientDataset, ClientDataset]:
    """Splits each client's examples; every client stays in all three parts.

    A client's shares of test and validation are rounded, halves up; train takes the rest, and
    at least one example of any client that has one.

    Args:
        dataset: The examples, each client's in time order if `ordered`.
        fractions: The parts for train, validation and test, which sum to 1.
        seed: A whole number >= 0; the same seed gives the same split. Without meaning if
            `ordered`.
        ordered: True for each client's last examples as test and those before as validation;
            False for random ones.

    Returns:
        Train, validation and test. Within each part a client's examples keep their order.

    Raises:
        UserError: If an option is out of range.
    """
    _, validation, test = check_fractions(fractions)
    rng = np.random.Generator(np.random.PCG64(check_count("seed", seed)))
    counts = dataset.counts
    num_test = np.minimum(_round(counts * test), np.maximum(counts - 1, 0))
    num_validation = np.minimum(_round(counts * validation), np.maximum(counts - num_test - 1, 0))

    # A row's place counted from its client's last, by time or by chance.
    if ordered:
        places = dataset.example_positions
    else:
        clients = dataset.example_clients
        places = np.empty_like(clients)
        by_chance = np.lexsort((rng.random(dataset.num_examples), clients))
        places[by_chance] = dataset.example_positions
    from_end = np.repeat(counts, counts) - 1 - places
    test_end = np.repeat(num_test, counts)
    validation_end = test_end + np.repeat(num_validation, counts)
    return (
        dataset.filter_examples(from_end >= validation_end),
        dataset.filter_examples((from_end >= test_end) & (from_end < validation_end)),
        dataset.filter_examples(from_end < test_end),
    )


def _round(shares: np.ndarray) -> np.ndarray:
    return np.floor(shares + 0.5).astype(np.int64)

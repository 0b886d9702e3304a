"""Splits of clients and of each client's examples: train, validation, test; support and query."""

from __future__ import annotations

import fractions
import re
from typing import Any

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import check_count, check_fractions
from fedpersonal.errors import UserError, check_choice, with_count
from fedpersonal.randomness import Purpose, generator

SUPPORT_PARTS = ("support", "first_half")
QUERY_PARTS = ("query", "second_half")
# Name of a dataset split function to the parts that are the support set and the query set.
SPLITS = {
    "skip": ("support", "query"),
    "aggregated": ("first_half", "second_half"),
    "shared": ("all", "all"),
}
PARTS = (*SUPPORT_PARTS, *QUERY_PARTS, "all")


def split_parts(split: str, support_share: float = 0.5) -> tuple[str, str]:
    """Returns the parts that are the support set and the query set of a dataset split function.

    Args:
        split: One of `SPLITS`. `skip` distributes batches evenly and starts with the support set;
            `aggregated` takes the first batches as the support set; `shared` takes all for both.
        support_share: Share of the batches in the support set, to 1 %; ignored by `shared`.

    Raises:
        ValueError: If the split is unknown, or the share is not between 0 and 1.
    """
    check_choice("split_parts", "split", split, tuple(SPLITS))
    share = fractions.Fraction(support_share).limit_denominator(100)
    if not 0 < share < 1:
        raise ValueError(f"support_share must be between 0.01 and 0.99, not {support_share}.")
    support, query = SPLITS[split]
    suffix = "" if split == "shared" or share == fractions.Fraction(1, 2) else f" {share}"
    return f"{support}{suffix}", f"{query}{suffix}"


def check_part(context: str, part: str) -> None:
    """Raises a ValueError unless `part` is one of `PARTS` or a result of `split_parts`."""
    name, _, share = part.partition(" ")
    is_share = re.fullmatch(r"[1-9]\d?/[1-9]\d{0,2}", share) and 0 < fractions.Fraction(share) < 1
    check_choice(context, "data", name if is_share and name != "all" else part, PARTS)


def is_query(part: str) -> bool:
    """Returns whether a part is a query set that excludes the support set."""
    return part.partition(" ")[0] in QUERY_PARTS


def dividing_part(part: str) -> str | None:
    """Returns the support part of the split that a part belongs to; None for all of the data."""
    name, _, share = part.partition(" ")
    if name == "all":
        return None
    names = dict(zip(QUERY_PARTS, SUPPORT_PARTS))
    return f"{names.get(name, name)} {share}".rstrip()


def count_batches(part: str, num_batches: Any) -> Any:
    """Returns the number of a client's batches in a part; a remainder is in the support set.

    Args:
        part: `support` (batches 0, 2, 4...), `query` (1, 3, 5...), `first_half`, `second_half`,
            `all`, or one of `split_parts`.
        num_batches: The number of the client's batches.
    """
    if part == "all":
        return num_batches
    name, a, b = _parsed(part)
    support = (a * num_batches + b - 1) // b
    return support if name in SUPPORT_PARTS else num_batches - support


def find_batch(part: str, place: Any, num_batches: Any) -> Any:
    """Returns the index among the client's batches of the batch at a place in a part."""
    name, a, b = _parsed(part)
    if name in ("all", "first_half"):
        return place
    if name == "second_half":
        return place + (a * num_batches + b - 1) // b
    return b * place // a if name == "support" else (b * place + b - 1) // (b - a)


def is_in_part(part: str, index: Any, num_batches: Any) -> Any:
    """Returns whether the client's batch of an index is in a part."""
    name, a, b = _parsed(part)
    if name == "all":
        return index >= 0
    if name in ("support", "query"):
        place = (a * index - 1) % b
        return place >= b - a if name == "support" else place < b - a
    first = (a * num_batches + b - 1) // b
    return index < first if name == "first_half" else index >= first


def _parsed(part: str) -> tuple[str, int, int]:
    """Returns the name of a part, and the support set's share as a fraction."""
    name, _, share = part.partition(" ")
    a, b = map(int, (share or "1/2").split("/"))
    return name, a, b


_FRACTIONS = (0.8, 0.1, 0.1)


def split_clients(
    num_clients: int,
    *,
    fractions: tuple[float, float, float] = _FRACTIONS,
    seed: int,
    purpose: Purpose = Purpose.SPLIT,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shuffles clients and assigns each to train, validation or test.

    Args:
        num_clients: The number of clients.
        fractions: The parts for train, validation and test, which sum to 1.
        seed: >= 0.
        purpose: The random stream of the seed.

    Returns:
        Three arrays of client indices, int64, in shuffled order, which partition the clients.
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
    """Splits each client's examples into train, validation and test; each part has every client.

    A client's numbers of test and validation examples are rounded, halves up. The remaining
    examples are for training, at least one of each client that has one. Examples keep their order.

    Args:
        dataset: The examples, each client's in time order if `ordered`.
        fractions: The parts for train, validation and test, which sum to 1.
        seed: >= 0; ignored if `ordered`.
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
        seed: >= 0; ignored if `ordered`.
        ordered: True for the examples' order, False for a random order.
    """
    rng = generator(Purpose.SPLIT, check_count("seed", seed))
    places = dataset.example_positions
    if not ordered:
        shuffled = np.lexsort((rng.random(dataset.num_examples), dataset.example_clients))
        places[shuffled] = places.copy()
    return np.repeat(dataset.counts, dataset.counts) - 1 - places


def split_support_query(
    dataset: ClientDataset, *, batch_size: int, split: str = "skip", support_share: float = 0.5
) -> tuple[ClientDataset, ClientDataset]:
    """Splits the batches of each client into support and query sets, as training does.

    Args:
        dataset: The clients.
        batch_size: Examples a batch, >= 1.
        split: `skip`: batches 0, 2, ... are the support set, 1, 3, ... the query set. `aggregated`:
            the first half is the support set. With an odd number it has one batch more.
        support_share: Share of the batches in the support set, from 0.01 to 0.99, to 1 %.
    """
    check_choice("split_support_query", "split", split, ("skip", "aggregated"))
    is_query = _is_query(dataset, batch_size, split, support_share)
    return dataset.filter_examples(~is_query), dataset.filter_examples(is_query)


def count_query_examples(
    dataset: ClientDataset, *, batch_size: int, split: str = "skip", support_share: float = 0.5
) -> np.ndarray:
    """Counts the examples in each client's query set, (num_clients,) int64.

    Clients with a single batch have none, except for the split `shared`, where all examples are in
    both sets. The other arguments are those of `split_support_query`.
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
    """Raises a `UserError` if no client of the data `name` has a query set."""
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
    """Raises a `UserError` if the data `name` have too few clients to split."""
    if num_clients < minimum:
        raise UserError(
            f"{name} has {with_count(num_clients, 'users')}; at least {minimum} are needed to hold "
            f"some out. {advice}".rstrip()
        )


def _is_query(
    dataset: ClientDataset, batch_size: int, split: str, support_share: float
) -> np.ndarray:
    """Returns whether each example is in a query set, (num_examples,) bool."""
    check_count("batch_size", batch_size, minimum=1)
    _, query = split_parts(split, support_share)
    num_batches = -(-dataset.counts // batch_size)
    batches = dataset.example_positions // batch_size
    return is_in_part(query, batches, num_batches[dataset.example_clients])


def _round(shares: np.ndarray) -> np.ndarray:
    return np.floor(shares + 0.5).astype(np.int64)

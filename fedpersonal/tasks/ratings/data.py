"""Who trains on which ratings, and who is evaluated on which (Singhal et al., section 5.1.1)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedpersonal.data.ranking import (
    as_clients,
    hold_out_candidates,
    put_first,
    sample_unrated,
)
from fedpersonal.data.splits import (
    check_num_clients,
    split_clients,
    split_examples,
    split_support_query,
)
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.tasks.items import ItemData
from fedpersonal.tasks.task import EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.data.clients import ClientDataset
    from fedpersonal.data.ratings import Ratings
    from fedpersonal.tasks.ratings.task import RatingRun


@dataclasses.dataclass(frozen=True, eq=False)
class RankedSet(EvaluationSet):
    """Clients to evaluate by ratings and by a ranking.

    Attributes:
        ranking: What is ranked, a client's held-out item before up to 99 others, and its support.
            A client that has left fewer than 10 items unrated has nothing to rank.
        draws: (num_draws, clients_per_draw) int64: clients drawn to be tested on by themselves.
    """

    ranking: EvaluationSet | None = None
    draws: np.ndarray = dataclasses.field(default_factory=lambda: np.empty((0, 0), np.int64))


@dataclasses.dataclass(frozen=True, eq=False)
class RatingData(ItemData):
    """Ratings, split for one experiment."""

    train: ClientDataset
    validation: RankedSet
    test: RankedSet


def split_ratings(ratings: Ratings, options: RatingRun) -> RatingData:
    """Splits ratings in one of the paper's two ways.

    Evaluated on `unseen` clients, 80/10/10 % of the users train, validate and test; an unseen
    user's even batches are its support set, the odd ones its query set. On `seen` clients, all
    users train on 80 % of their ratings, and are validated and tested on 10 % each: the last ones
    by time, or random ones, as of `is_ordered`.

    Raises:
        UserError: If there are too few users, or times are asked for where there are none.
    """
    seed, batch_size = options.seed, options.client_batch_size
    max_ratings = options.max_ratings_per_user or None
    dataset = ratings.to_client_dataset()
    ordered = is_ordered(ratings, options)
    num_items = len(ratings.item_ids)
    if options.evaluate_on == "unseen":
        check_num_clients(ratings.name, dataset.num_clients, minimum=10)
        first = dataset.head(max_ratings) if max_ratings else dataset
        train_clients, *others = split_clients(dataset.num_clients, seed=seed)
        train, share = first.subset(train_clients), options.support_share
        parts = [
            _unseen(first.subset(c), dataset.subset(c), num_items, batch_size, share, seed, ordered)
            for c in others
        ]
    else:
        train, *held_out = split_examples(dataset, seed=seed, ordered=ordered)
        parts = [_seen(dataset, train, part, num_items, seed) for part in held_out]
        if max_ratings:
            train = train.head(max_ratings)
    validation, test = parts
    test = dataclasses.replace(test, draws=_draw_clients(test.query, options))
    return RatingData(ratings.name, train, validation, test, ratings)


def is_ordered(ratings: Ratings, options: RatingRun) -> bool:
    """Tells whether what is tested of a user comes last by time, or is random.

    Raises:
        UserError: If options ask for times that there are not.
    """
    if options.split_by == "time" and ratings.times is None:
        raise UserError(f"--split_by=time: {ratings.name} has no times here; give random or auto.")
    return ratings.times is not None and options.split_by != "random"


def _unseen(
    dataset: ClientDataset,
    rated: ClientDataset,
    num_items: int,
    batch_size: int,
    support_share: float,
    seed: int,
    ordered: bool,
) -> RankedSet:
    support, query = split_support_query(
        dataset, batch_size=batch_size, support_share=support_share
    )
    ranking_support, candidates = hold_out_candidates(
        dataset, rated=rated, num_items=num_items, seed=seed, ordered=ordered
    )
    ranking = EvaluationSet(ranking_support, as_clients(dataset, candidates))
    return RankedSet(support, query, seen=False, ranking=ranking)


def _seen(
    dataset: ClientDataset, train: ClientDataset, part: ClientDataset, num_items: int, seed: int
) -> RankedSet:
    """Returns all clients; of those with too few ratings the query set is empty."""
    # The held-out item is the last one of the part; the negatives are unrated in all of the data.
    tested = part.counts > 0
    items = np.zeros(part.num_clients, np.int32)
    items[tested] = part.features["item"][part.offsets[1:][tested] - 1]
    drawn = sample_unrated(dataset, num_items=num_items, seed=seed)
    negatives = [own if own_tested else own[:0] for own, own_tested in zip(drawn, tested)]
    query = as_clients(dataset, put_first(items, negatives))
    return RankedSet(train, part, seen=True, ranking=EvaluationSet(train, query, seen=True))


def _draw_clients(query: ClientDataset, options: RatingRun) -> np.ndarray:
    """Returns what `RankedSet.draws` are, of clients with a query set; all if there are no more."""
    rng, known = generator(Purpose.TEST_DRAWS, options.seed), np.flatnonzero(query.counts > 0)
    size, draws = min(options.clients_per_draw, len(known)), options.test_draws
    drawn = [rng.choice(known, size, replace=False) for _ in range(draws)]
    return np.array(drawn, np.int64).reshape(draws, size)


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

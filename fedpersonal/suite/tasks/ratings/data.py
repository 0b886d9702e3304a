"""The split of ratings and users (Singhal et al., section 5.1.1)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedpersonal.data.splits import (
    check_num_clients,
    split_clients,
    split_examples,
    split_support_query,
)
from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.readers.ranking import (
    candidates_as_clients,
    hold_out_candidates,
    prepend_items,
    sample_unrated,
)
from fedpersonal.suite.tasks.items import ItemData
from fedpersonal.suite.tasks.task import EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.data.clients import ClientDataset
    from fedpersonal.suite.readers.ratings import Ratings
    from fedpersonal.suite.tasks.ratings.options import RatingRun


@dataclasses.dataclass(frozen=True, eq=False)
class RankedSet(EvaluationSet):
    """Clients to evaluate by ratings and by a ranking.

    Attributes:
        ranking: The support sets, and the candidates to rank: a client's held-out item first, then
            up to 99 others. A client with fewer than 10 unrated items has no candidates.
        client_samples: (num_samples, clients_per_sample) int64: samples of clients for which
            metrics are computed separately.
    """

    ranking: EvaluationSet | None = None
    client_samples: np.ndarray = dataclasses.field(
        default_factory=lambda: np.empty((0, 0), np.int64)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class RatingData(ItemData):
    """Ratings, split for one experiment."""

    train: ClientDataset
    validation: RankedSet
    test: RankedSet


def split_ratings(ratings: Ratings, options: RatingRun) -> RatingData:
    """Splits ratings in one of the paper's two ways.

    To evaluate `unseen` clients, 80/10/10 % of the users train, validate and test; an unseen user's
    even batches are its support set, the odd ones its query set. To evaluate `seen` clients, all
    users train on 80 % of their ratings, and are validated and tested on 10 % each: the last ones
    by time, or random ones, see `is_ordered`.

    Raises:
        UserError: If there are too few users, or options require times that the data lack.
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
    test = dataclasses.replace(test, client_samples=_sample_clients(test.query, options))
    return RatingData(ratings.name, train, validation, test, ratings)


def is_ordered(ratings: Ratings, options: RatingRun) -> bool:
    """Returns whether a user's held-out ratings are the last by time, and not random ones.

    Raises:
        UserError: If options require times that the data lack.
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
    ranking = EvaluationSet(ranking_support, candidates_as_clients(dataset, candidates))
    return RankedSet(support, query, seen=False, ranking=ranking)


def _seen(
    dataset: ClientDataset, train: ClientDataset, part: ClientDataset, num_items: int, seed: int
) -> RankedSet:
    """Returns all clients; the query sets of clients with too few ratings are empty."""
    # The held-out item is the last one of the part; negatives are unrated in the whole data set.
    tested = part.counts > 0
    items = np.zeros(part.num_clients, np.int32)
    items[tested] = part.features["item"][part.offsets[1:][tested] - 1]
    sampled = sample_unrated(dataset, num_items=num_items, seed=seed)
    negatives = [ids if is_tested else ids[:0] for ids, is_tested in zip(sampled, tested)]
    query = candidates_as_clients(dataset, prepend_items(items, negatives))
    return RankedSet(train, part, seen=True, ranking=EvaluationSet(train, query, seen=True))


def _sample_clients(query: ClientDataset, options: RatingRun) -> np.ndarray:
    """Returns `RankedSet.client_samples`, of clients with a query set."""
    rng, clients = generator(Purpose.TEST_DRAWS, options.seed), np.flatnonzero(query.counts > 0)
    size, number = min(options.clients_per_draw, len(clients)), options.test_draws
    samples = [rng.choice(clients, size, replace=False) for _ in range(number)]
    return np.array(samples, np.int64).reshape(number, size)


def add_rated(dataset: ClientDataset, history: ClientDataset, *, places: int) -> ClientDataset:
    """Adds to each rating the items that its user has rated in another data set.

    Args:
        dataset: Ratings.
        history: Ratings of the same clients, with the feature "item".
        places: The maximal number of items. If a user has more, hashes of its name and the items'
            ids choose among them: the same items for all ratings of the user, regardless of other
            users.

    Returns:
        The first data set with the features "rated", int32 (n, places), and "num_rated", int32
        (n,), the number of places in use. The other places repeat the first.

    Raises:
        ValueError: The two have different clients.
    """
    if not np.array_equal(dataset.client_ids, history.client_ids):
        raise ValueError("dataset and history must have the same clients, in the same order.")
    items = history.features["item"]
    order = np.lexsort((_hashes(history), history.example_clients))
    numbers = np.minimum(history.counts, places)
    rated = np.zeros([history.num_clients, places], np.int32)
    has = np.flatnonzero(numbers)
    place = np.arange(places) * (np.arange(places) < numbers[has, np.newaxis])
    rated[has] = items[order[history.offsets[has, np.newaxis] + place]]
    by_client = {"rated": rated, "num_rated": numbers.astype(np.int32)}
    added = {name: column[dataset.example_clients] for name, column in by_client.items()}
    return dataclasses.replace(dataset, features={**dataset.features, **added})


def _hashes(dataset: ClientDataset) -> np.ndarray:
    """Returns a hash of each rating's client and item, uint64 (n,)."""
    clients = pd.util.hash_array(dataset.client_ids, categorize=False)
    items = pd.util.hash_array(dataset.features["item"].astype(np.uint64))
    return pd.util.hash_array(clients[dataset.example_clients] ^ items)

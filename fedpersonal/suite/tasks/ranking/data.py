"""The leave-one-out split of interactions, their negatives, and rankings of held-out items."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.errors import UserError
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.suite.readers.interactions import Implicit, Interactions, Negatives, leave_one_out
from fedpersonal.suite.readers.ranking import (
    CUTOFF,
    MIN_UNRATED,
    candidates_as_clients,
    prepend_items,
    sample_unrated,
)
from fedpersonal.suite.tasks.items import ItemData, query_metrics, rank_by_items, ranked_means
from fedpersonal.suite.tasks.task import EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.suite.tasks.ranking.options import InteractionRun
    from fedpersonal.training.trained import TrainedModel

    InteractionExperiment = Experiment[InteractionRun, "InteractionData"]


@dataclasses.dataclass(frozen=True, eq=False)
class InteractionData(ItemData):
    """Interactions, split for one experiment.

    Every client trains, and is validated and tested by ranking a held-out item among items that the
    client has never chosen. The held-out item is the first one of the query set, with label 1. The
    query set is empty for a client with fewer than 10 unchosen items.
    """

    train: Implicit


def split_interactions(source: Interactions, options: InteractionRun) -> InteractionData:
    """Holds out each user's last two interactions by time, or two random ones; samples negatives.

    Raises:
        UserError: If a user has fewer than three interactions, or no user has enough unchosen items
            for negatives.
    """
    seed, num_items = options.seed, len(source.item_ids)
    everything = source.to_client_dataset()
    held_out = leave_one_out(everything, seed=seed, ordered=source.times is not None)
    if num_items - everything.counts.min() < MIN_UNRATED:
        raise UserError(
            f"{source.name}: no user has left {MIN_UNRATED} of the {num_items} items unchosen, so "
            "there is nothing to rank among."
        )
    avoided = everything if options.leaky_negatives else held_out.train
    negatives = Negatives(avoided, num_items, options.num_negatives, seed)
    train = support = Implicit.from_positives(held_out.train, negatives)
    if options.support_negatives != options.num_negatives:
        sampled = dataclasses.replace(negatives, per_positive=options.support_negatives or None)
        support = Implicit.from_positives(held_out.train, sampled)

    def part(items: np.ndarray, seed: int) -> EvaluationSet:
        negatives = sample_unrated(everything, num_items=num_items, seed=seed)
        candidates = prepend_items(items, negatives)
        return EvaluationSet(support, candidates_as_clients(everything, candidates), seen=True)

    validation, test = part(held_out.validation, 2 * seed + 1), part(held_out.test, 2 * seed)
    return InteractionData(source.name, train, validation, test, source)


_MAX_CLIENTS = 500  # Clients whose scores of all items are in memory at once.


@dataclasses.dataclass(frozen=True, eq=False)
class RankedResults(ClientResults):
    """Results with `hr@10` and `ndcg@10`, where the first candidate is the relevant one.

    Attributes:
        suffix: The suffix of metrics' names, from `candidates_suffix`.
    """

    suffix: str = ""

    @property
    def ranking(self) -> dict[str, np.ndarray]:
        """The ranking metrics of each client."""
        assert self.predictions is not None
        return query_metrics(self.predictions, self.num_examples, self.suffix)

    def overall(self) -> dict[str, float]:
        """Returns metrics after personalisation, with means over clients for the ranking."""
        return {**super().overall(), **ranked_means(self.ranking)}


def rank_among_all(
    experiment: InteractionExperiment, trained: TrainedModel
) -> dict[str, np.ndarray]:
    """Returns `all_items_metrics` of the test clients' personalised models."""
    data, test = experiment.data, experiment.data.test

    def score(clients: np.ndarray) -> np.ndarray:
        query = test.query.subset(clients)
        items = np.tile(np.arange(data.num_items, dtype=np.int32), (len(clients), 1))
        part = EvaluationSet(
            test.support.subset(clients), candidates_as_clients(query, items), seen=True
        )
        scores = experiment.evaluation(part, with_before=False)(trained).predictions
        assert scores is not None  # Stacked packing always returns predictions.
        return scores

    return all_items_metrics(data, score)


def all_items_metrics(
    data: InteractionData, score: Callable[[np.ndarray], np.ndarray]
) -> dict[str, np.ndarray]:
    """Ranks each test client's held-out item among all items that it has not in training.

    Args:
        data: The data.
        score: A function from clients' indices, (n,), to their scores of every item, floats
            (n, num_items).

    Returns:
        `hr@10_all` and `ndcg@10_all`, float64 (num_clients,), NaN for clients without a ranking.
    """
    from fedpersonal.model.metrics import ranking_metrics

    query = data.test.query
    metrics = {
        f"{name}@{CUTOFF}_all": np.full(query.num_clients, np.nan) for name in ("hr", "ndcg")
    }
    ranked_clients = np.flatnonzero(query.counts)
    chunks = range(_MAX_CLIENTS, len(ranked_clients), _MAX_CLIENTS)
    for clients in np.split(ranked_clients, chunks):
        scores, places = score(clients), np.arange(len(clients))
        positives = data.train.positives.subset(clients)
        held_out = query.features["item"][query.offsets[clients]]
        ranked = np.column_stack([scores[places, held_out], scores])
        candidates = np.ones(ranked.shape, bool)
        # Remove the held-out item's second place, and the items of training.
        candidates[places, 1 + held_out] = False
        candidates[positives.example_clients, 1 + positives.features["item"]] = False
        for name, values in ranking_metrics(ranked, at=CUTOFF, candidates=candidates).items():
            metrics[f"{name}_all"][clients] = values
    return metrics


def rank_by_popularity(data: InteractionData, part: EvaluationSet) -> dict[str, np.ndarray]:
    """Ranks each client's held-out item by how often items are chosen in training.

    Args:
        data: The data.
        part: The data's `validation` or `test` clients.

    Returns:
        `hr@10` and `ndcg@10`, and for test clients `hr@10_all` and `ndcg@10_all`, float64
        (num_clients,), NaN for clients without a ranking.
    """
    chosen = data.train.positives.features["item"]
    return _rank(data, part, np.bincount(chosen, minlength=data.num_items).astype(np.float64))


def rank_by_chance(data: InteractionData, part: EvaluationSet) -> dict[str, np.ndarray]:
    """Returns the metrics of a random order of the candidates, as `rank_by_popularity`."""
    return _rank(data, part, np.zeros(data.num_items))


def _rank(
    data: InteractionData, part: EvaluationSet, item_scores: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the ranking metrics of the same item scores, (num_items,), for all clients."""
    sampled = rank_by_items(part.query, item_scores, data.source.candidates_suffix)
    if part is not data.test:
        return sampled
    among_all = all_items_metrics(data, lambda clients: np.tile(item_scores, (len(clients), 1)))
    return {**sampled, **among_all}

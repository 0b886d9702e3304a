"""How high a client's held-out item is ranked: among sampled items, and among all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.ratings.ranking import AT, as_clients
from fedpersonal.evaluation.client_results import ClientResults
from fedpersonal.model.metrics import ranking_metrics
from fedpersonal.tasks.interactions.data import InteractionData
from fedpersonal.tasks.ranking import query_metrics, ranked_means
from fedpersonal.tasks.task import EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.tasks.interactions.task import InteractionExperiment
    from fedpersonal.trained import TrainedModel

_TOGETHER = 500  # Clients whose scores of all items are in memory at once.


@dataclasses.dataclass(frozen=True, eq=False)
class RankedResults(ClientResults):
    """Results of candidates, of which the first is the relevant one; with `hr@10` and `ndcg@10`.

    Attributes:
        suffix: What these names end with, as of `candidates_suffix`.
    """

    suffix: str

    @property
    def ranking(self) -> dict[str, np.ndarray]:
        """Each client's metrics of the ranking."""
        assert self.predictions is not None
        return query_metrics(self.predictions, self.num_examples, self.suffix)

    def overall(self) -> dict[str, float]:
        """Returns the metrics over all clients, after personalisation."""
        return {**super().overall(), **ranked_means(self.ranking)}


def rank_among_all(
    experiment: InteractionExperiment, trained: TrainedModel
) -> dict[str, np.ndarray]:
    """Returns `all_items_metrics` of the test clients' personalised models."""
    data, test = experiment.data, experiment.data.test

    def score(clients: np.ndarray) -> np.ndarray:
        query = test.query.subset(clients)
        items = np.tile(np.arange(data.num_items, dtype=np.int32), (len(clients), 1))
        part = EvaluationSet(test.support.subset(clients), as_clients(query, items), seen=True)
        scores = experiment.evaluation(part, with_before=False)(trained).predictions
        assert scores is not None  # Stacked packing gives them unasked.
        return scores

    return all_items_metrics(data, score)


def all_items_metrics(
    data: InteractionData, score: Callable[[np.ndarray], np.ndarray]
) -> dict[str, np.ndarray]:
    """Ranks each test client's held-out item among all that it has not in training.

    Args:
        data: The data.
        score: Returns some clients' scores of every item, floats (n, num_items), by the clients'
            indices, (n,).

    Returns:
        `hr@10_all` and `ndcg@10_all`, float64 (num_clients,), NaN for clients who are not ranked.
    """
    query = data.test.query
    found = {f"{name}@{AT}_all": np.full(query.num_clients, np.nan) for name in ("hr", "ndcg")}
    everybody = np.flatnonzero(query.counts)
    for clients in np.split(everybody, range(_TOGETHER, len(everybody), _TOGETHER)):
        scores, places = score(clients), np.arange(len(clients))
        positives = data.train.positives.subset(clients)
        held_out = query.features["item"][query.offsets[clients]]
        ranked = np.column_stack([scores[places, held_out], scores])
        candidates = np.ones(ranked.shape, bool)
        # It is there twice now, and what was trained on is no candidate.
        candidates[places, 1 + held_out] = False
        candidates[positives.example_clients, 1 + positives.features["item"]] = False
        for name, values in ranking_metrics(ranked, at=AT, candidates=candidates).items():
            found[f"{name}_all"][clients] = values
    return found

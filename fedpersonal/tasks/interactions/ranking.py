"""How high a client's held-out item is ranked: among sampled items, and among all."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.ratings.ranking import as_clients
from fedpersonal.evaluation.client_results import ClientResults
from fedpersonal.model.metrics import ranking_metrics
from fedpersonal.tasks.interactions.data import InteractionData
from fedpersonal.tasks.task import EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.tasks.interactions.task import InteractionExperiment
    from fedpersonal.trained import TrainedModel

AT = 10
_TOGETHER = 500  # Clients whose scores of all items are in memory at once.


@dataclasses.dataclass(frozen=True, eq=False)
class RankedResults(ClientResults):
    """Results of candidates, of which the first is the relevant one; with `hr@10` and `ndcg@10`."""

    @property
    def ranking(self) -> dict[str, np.ndarray]:
        """Each client's metrics of the ranking."""
        assert self.predictions is not None
        return ranking_metrics(self.predictions, at=AT)

    def overall(self) -> dict[str, float]:
        """Returns the metrics over all clients, after personalisation."""
        return {**super().overall(), **{k: float(v.mean()) for k, v in self.ranking.items()}}


def rank_among_all(
    experiment: InteractionExperiment, trained: TrainedModel
) -> dict[str, np.ndarray]:
    """Ranks each test client's held-out item among all that it has not in training.

    Returns:
        `hr@10_all` and `ndcg@10_all`, float64 (num_clients,).
    """
    data, test = experiment.data, experiment.data.test
    everybody, found = np.arange(test.query.num_clients), []
    for chosen in np.split(everybody, range(_TOGETHER, len(everybody), _TOGETHER)):
        clients = test.query.subset(chosen)
        items = np.tile(np.arange(data.num_items, dtype=np.int32), (len(chosen), 1))
        part = EvaluationSet(test.support.subset(chosen), as_clients(clients, items), seen=True)
        scores = experiment.evaluation(part, with_before=False)(trained).predictions
        assert scores is not None  # Stacked packing gives them unasked.
        found.append(all_items_metrics(data, chosen, scores))
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def all_items_metrics(
    data: InteractionData, clients: np.ndarray, scores: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the metrics of `rank_among_all` for some clients.

    Args:
        data: The data.
        clients: (n,) indices of clients.
        scores: Floats (n, num_items), each client's of every item; left as they are.
    """
    positives, places = data.train.positives.subset(clients), np.arange(len(clients))
    held_out = data.test.query.features["item"][data.test.query.offsets[clients]]
    ranked = np.column_stack([scores[places, held_out], scores])
    # It is there twice now, and what was trained on is no candidate.
    ranked[places, 1 + held_out] = -np.inf
    ranked[positives.example_clients, 1 + positives.features["item"]] = -np.inf
    return {f"{name}_all": values for name, values in ranking_metrics(ranked, at=AT).items()}

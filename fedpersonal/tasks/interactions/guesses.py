"""What items are guessed without any training."""

from __future__ import annotations

import numpy as np

from fedpersonal.tasks.interactions.data import InteractionData
from fedpersonal.tasks.interactions.ranking import all_items_metrics
from fedpersonal.tasks.ranking import rank_by_items
from fedpersonal.tasks.task import EvaluationSet


def rank_by_popularity(data: InteractionData, part: EvaluationSet) -> dict[str, np.ndarray]:
    """Ranks each client's held-out item by how often items are chosen in training.

    Args:
        data: The data.
        part: Its `validation` or `test` clients.

    Returns:
        `hr@10` and `ndcg@10`, and of test clients `hr@10_all` and `ndcg@10_all`, float64
        (num_clients,), NaN for those who are not ranked.
    """
    chosen = data.train.positives.features["item"]
    return _rank(data, part, np.bincount(chosen, minlength=data.num_items).astype(np.float64))


def rank_by_chance(data: InteractionData, part: EvaluationSet) -> dict[str, np.ndarray]:
    """Returns what a random order of the candidates comes to, as `rank_by_popularity`."""
    return _rank(data, part, np.zeros(data.num_items))


def _rank(
    data: InteractionData, part: EvaluationSet, item_scores: np.ndarray
) -> dict[str, np.ndarray]:
    """Ranks by the same scores, (num_items,), for all clients."""
    sampled = rank_by_items(part.query, item_scores, data.source.candidates_suffix)
    if part is not data.test:
        return sampled
    everywhere = all_items_metrics(data, lambda clients: np.tile(item_scores, (len(clients), 1)))
    return {**sampled, **everywhere}

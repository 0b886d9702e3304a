"""Hit rate and NDCG of clients' held-out items, those of chance, and how many clients count."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.ratings.ranking import AT
from fedpersonal.model.metrics import ranking_metrics


def query_metrics(scores: np.ndarray, counts: np.ndarray, suffix: str) -> dict[str, np.ndarray]:
    """Ranks the first example of each client's query set among the others.

    Args:
        scores: Floats (num_clients, longest query set), padded.
        counts: Examples of each client's query set, (num_clients,).
        suffix: What names end with, as of `candidates_suffix`.

    Returns:
        `hr@10` and `ndcg@10`, float64 (num_clients,), NaN for clients who are not ranked.
    """
    candidates = np.arange(scores.shape[1]) < np.asarray(counts)[:, np.newaxis]
    found = ranking_metrics(scores, at=AT, candidates=candidates)
    return {f"{name}{suffix}": values for name, values in found.items()}


def rank_by_items(
    query: ClientDataset, item_scores: np.ndarray, suffix: str
) -> dict[str, np.ndarray]:
    """Ranks by the same scores for all clients; equal ones are a random order.

    Args:
        query: The query sets, with the feature "item".
        item_scores: Floats (num_items,).
        suffix: As of `query_metrics`, whose metrics are returned.
    """
    scores = np.zeros((query.num_clients, query.counts.max(initial=1)))
    scores[query.example_clients, query.example_positions] = item_scores[query.features["item"]]
    return query_metrics(scores, query.counts, suffix)


def ranked_means(columns: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the mean of each column over the clients who are ranked; nothing if nobody is."""
    means = {name: values[~np.isnan(values)] for name, values in columns.items()}
    return {name: float(values.mean()) for name, values in means.items() if values.size}

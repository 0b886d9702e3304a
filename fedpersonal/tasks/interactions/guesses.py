"""What is ranked without any training: by how many clients have chosen an item."""

from __future__ import annotations

import numpy as np

from fedpersonal.model.metrics import ranking_metrics
from fedpersonal.tasks.interactions.data import InteractionData
from fedpersonal.tasks.interactions.ranking import AT, all_items_metrics


def rank_by_popularity(data: InteractionData) -> dict[str, np.ndarray]:
    """Ranks each test client's held-out item by how often items are chosen in training.

    Returns:
        `hr@10`, `ndcg@10`, `hr@10_all` and `ndcg@10_all`, float64 (num_clients,).
    """
    chosen, query = data.train.positives.features["item"], data.test.query
    counts = np.bincount(chosen, minlength=data.num_items).astype(np.float64)
    candidates = query.features["item"].reshape(query.num_clients, -1)
    clients = np.arange(query.num_clients)
    everywhere = np.broadcast_to(counts, (len(clients), data.num_items))
    return {
        **ranking_metrics(counts[candidates], at=AT),
        **all_items_metrics(data, clients, everywhere),
    }

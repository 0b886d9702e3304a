"""Metrics over draws of a few clients, as of papers that test on no more at once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedpersonal.evaluation.client_results import ClientResults


def over_draws(results: ClientResults, draws: Iterable[np.ndarray]) -> dict[str, dict[str, float]]:
    """Returns each metric's mean and standard deviation over draws of clients.

    Args:
        results: Of all clients.
        draws: Each draw's clients by their places, int64, each once.

    Returns:
        Metric name to `mean` and `sd`, after personalisation; a draw's metric is over all examples
        of its clients.
    """
    found = []
    for clients in draws:
        chosen = np.zeros(len(results.num_examples), bool)
        chosen[clients] = True
        found.append(results.some(chosen).overall())
    return {
        name: {
            "mean": float(np.mean([metrics[name] for metrics in found])),
            "sd": float(np.std([metrics[name] for metrics in found])),
        }
        for name in found[0]
    }

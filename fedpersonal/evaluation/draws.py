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
        of its clients. A draw in which nobody counts in a metric is none of that metric's.
    """
    found = []
    for clients in draws:
        chosen = np.zeros(len(results.num_examples), bool)
        chosen[clients] = True
        found.append(results.some(chosen).overall())
    values: dict[str, list[float]] = {}
    for metrics in found:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return {n: {"mean": float(np.mean(v)), "sd": float(np.std(v))} for n, v in values.items()}

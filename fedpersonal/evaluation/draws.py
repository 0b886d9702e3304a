"""Metrics over draws of a few clients, as of papers that test on no more at once."""

from __future__ import annotations

import numpy as np

from fedpersonal.evaluation.evaluate import ClientResults


def over_draws(
    results: ClientResults, *, draws: int, clients: int, seed: int
) -> dict[str, dict[str, float]]:
    """Returns each metric's mean and standard deviation over draws of clients.

    So do Singhal et al. (footnote 3): 500 draws of 50 clients.

    Args:
        results: Of all clients; those without examples are never drawn.
        draws: How many draws there are.
        clients: How many clients a draw has, each once; all if there are no more.
        seed: Fixes the draws.

    Returns:
        Metric name to `mean` and `sd`, after personalisation; a draw's metric is over all examples
        of its clients.
    """
    rng, known = np.random.default_rng(seed), np.flatnonzero(results.num_examples > 0)
    found = []
    for _ in range(draws):
        chosen = np.zeros(len(results.num_examples), bool)
        chosen[rng.choice(known, min(clients, len(known)), replace=False)] = True
        found.append(results.some(chosen).overall())
    return {
        name: {
            "mean": float(np.mean([metrics[name] for metrics in found])),
            "sd": float(np.std([metrics[name] for metrics in found])),
        }
        for name in found[0]
    }

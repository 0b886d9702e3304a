"""What a guess that trains no model comes to on the same examples: what results must beat."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.evaluation.client_metrics import lower_is_better

GUESS = "_guess"
"""What `per_client.csv` adds to a metric's name for the guess' value of each client."""

CHANCE = "chance"
"""The guess that orders items at random."""


@dataclasses.dataclass(frozen=True, eq=False)
class Guess:
    """A guess, scored.

    Attributes:
        metrics: Metrics of all examples, by the names that results have.
        clients: Metric's name to float64 (num_clients,), NaN where a client has nothing to predict;
            of those metrics alone that a client has by itself.
    """

    metrics: Mapping[str, float]
    clients: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_sums(
        cls,
        sums: Mapping[str, np.ndarray],
        finalize: Mapping[str, Callable[[np.ndarray], np.ndarray]] | None = None,
    ) -> Guess:
        """Returns the guess of which each client's sums are known.

        Args:
            sums: Metric's name to (num_clients, 2), the sums of values and of weights.
            finalize: Metric's name to what maps means to it; none of those that are means.
        """

        def metric(name: str, pairs: np.ndarray) -> np.ndarray:
            with np.errstate(divide="ignore", invalid="ignore"):
                means = pairs[..., 0] / pairs[..., 1]
            return (finalize or {}).get(name, np.asarray)(means)

        totals = {name: float(metric(name, pairs.sum(0))) for name, pairs in sums.items()}
        return cls(totals, {name: metric(name, pairs) for name, pairs in sums.items()})

    @classmethod
    def of_labels(cls, query: ClientDataset, chosen: np.ndarray) -> Guess:
        """Returns the accuracy of chosen labels, (num_examples,), of what is to be predicted."""
        right = np.bincount(query.example_clients, query.labels == chosen, query.num_clients)
        return cls.of_sums({"accuracy": np.stack([right, query.counts], axis=-1)})

    @classmethod
    def of_clients(cls, clients: Mapping[str, np.ndarray]) -> Guess:
        """Returns the guess whose metrics are means over clients, NaN where one does not count."""
        known = {name: values[~np.isnan(values)] for name, values in clients.items()}
        return cls({name: float(v.mean()) for name, v in known.items() if v.size}, clients)


def overall(guesses: Mapping[str, Guess]) -> dict[str, dict[str, float]]:
    """Returns the guesses' metrics that are numbers, by the guess' name, as summaries have them."""
    return {
        name: {n: float(v) for n, v in guess.metrics.items() if math.isfinite(v)}
        for name, guess in guesses.items()
    }


def columns(guesses: Mapping[str, Guess]) -> dict[str, np.ndarray]:
    """Returns columns of each client: of a metric the values of the strongest guess."""
    metrics = overall(guesses)
    best_of_clients = {}
    for metric in dict.fromkeys(name for values in metrics.values() for name in values):
        best = strongest(metrics, metric)
        if best and metric in guesses[best[0]].clients:
            best_of_clients[metric + GUESS] = guesses[best[0]].clients[metric]
    return best_of_clients


def strongest(guesses: Any, metric: str) -> tuple[str, float] | None:
    """Returns the best guess by a metric, its name and its value; None where none has it.

    Args:
        guesses: What `overall` returns, or what a folder of others has in that place.
        metric: The metric.
    """
    candidates = []
    for name, values in guesses.items() if isinstance(guesses, Mapping) else ():
        value = values.get(metric) if isinstance(values, Mapping) else None
        if isinstance(value, (int, float)) and math.isfinite(value):
            candidates.append((str(name), float(value)))
    sign = 1 if lower_is_better(metric) else -1
    return min(candidates, key=lambda one: sign * one[1]) if candidates else None


def best_guess(tests: Sequence[Mapping[str, Any]], metric: str) -> tuple[str, float] | None:
    """Returns the best guess by the mean over several runs, its name and its mean.

    Args:
        tests: The entry `test` of each run's summary.
        metric: The metric.
    """
    by_guess: dict[str, list[float]] = {}
    for test in tests:
        guesses = test.get("guesses")
        for name, values in guesses.items() if isinstance(guesses, Mapping) else ():
            one = strongest({name: values}, metric)
            if one:
                by_guess.setdefault(one[0], []).append(one[1])
    means = {n: {metric: float(np.mean(v))} for n, v in by_guess.items() if len(v) == len(tests)}
    return strongest(means, metric)

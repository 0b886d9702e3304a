"""Baselines: what simple predictions without a trained model reach on the same examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.evaluation.client_metrics import lower_is_better

BASELINE_SUFFIX = "_guess"
"""Suffix of a metric's name in `per_client.csv` for the baseline's value of each client."""

CHANCE = "chance"
"""The baseline that orders items at random."""


@dataclasses.dataclass(frozen=True, eq=False)
class Baseline:
    """The metrics of a baseline.

    Attributes:
        metrics: Metrics pooled over examples, by the names that results use.
        clients: Metric's name to float64 (num_clients,), NaN where a client has nothing to predict.
            Metrics without a value for a single client are left out.
    """

    metrics: Mapping[str, float]
    clients: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_sums(
        cls,
        sums: Mapping[str, np.ndarray],
        finalize: Mapping[str, Callable[[np.ndarray], np.ndarray]] | None = None,
    ) -> Baseline:
        """Returns a baseline from each client's sums.

        Args:
            sums: Metric's name to (num_clients, 2), the sums of values and of weights.
            finalize: Metric's name to the function that maps a mean to the metric; metrics that are
                means need none.
        """

        def metric(name: str, pairs: np.ndarray) -> np.ndarray:
            with np.errstate(divide="ignore", invalid="ignore"):
                means = pairs[..., 0] / pairs[..., 1]
            return (finalize or {}).get(name, np.asarray)(means)

        totals = {name: float(metric(name, pairs.sum(0))) for name, pairs in sums.items()}
        return cls(totals, {name: metric(name, pairs) for name, pairs in sums.items()})

    @classmethod
    def from_labels(cls, query: ClientDataset, predicted: np.ndarray) -> Baseline:
        """Returns the accuracy of predicted labels, (num_examples,), on the query sets."""
        right = np.bincount(query.example_clients, query.labels == predicted, query.num_clients)
        return cls.from_sums({"accuracy": np.stack([right, query.counts], axis=-1)})

    @classmethod
    def from_clients(cls, clients: Mapping[str, np.ndarray]) -> Baseline:
        """Returns a baseline whose metrics are means over clients; NaN leaves a client out."""
        values = {name: column[~np.isnan(column)] for name, column in clients.items()}
        return cls({name: float(v.mean()) for name, v in values.items() if v.size}, clients)


def overall_metrics(baselines: Mapping[str, Baseline]) -> dict[str, dict[str, float]]:
    """Returns the finite metrics of each baseline by its name, as written to summaries."""
    return {
        name: {n: float(v) for n, v in baseline.metrics.items() if math.isfinite(v)}
        for name, baseline in baselines.items()
    }


def client_columns(baselines: Mapping[str, Baseline]) -> dict[str, np.ndarray]:
    """Returns a column for each metric: the clients' values of the strongest baseline."""
    metrics = overall_metrics(baselines)
    columns = {}
    for metric in dict.fromkeys(name for values in metrics.values() for name in values):
        best = strongest(metrics, metric)
        if best and metric in baselines[best[0]].clients:
            columns[metric + BASELINE_SUFFIX] = baselines[best[0]].clients[metric]
    return columns


def strongest(baselines: Any, metric: str) -> tuple[str, float] | None:
    """Returns the name and the value of the best baseline by a metric; None if none has it.

    Args:
        baselines: The result of `overall_metrics`, or the same entry of another program's summary,
            which may be of any type.
        metric: The metric.
    """
    candidates = []
    for name, values in baselines.items() if isinstance(baselines, Mapping) else ():
        value = values.get(metric) if isinstance(values, Mapping) else None
        if isinstance(value, (int, float)) and math.isfinite(value):
            candidates.append((str(name), float(value)))
    sign = 1 if lower_is_better(metric) else -1
    return min(candidates, key=lambda one: sign * one[1]) if candidates else None


def strongest_baseline(tests: Sequence[Mapping[str, Any]], metric: str) -> tuple[str, float] | None:
    """Returns the name and the mean of the best baseline by its mean over several runs.

    Args:
        tests: The entry `test` of each run's summary.
        metric: The metric.
    """
    values_by_name: dict[str, list[float]] = {}
    for test in tests:
        baselines = test.get("guesses")
        for name, values in baselines.items() if isinstance(baselines, Mapping) else ():
            one = strongest({name: values}, metric)
            if one:
                values_by_name.setdefault(one[0], []).append(one[1])
    means = {
        name: {metric: float(np.mean(values))}
        for name, values in values_by_name.items()
        if len(values) == len(tests)
    }
    return strongest(means, metric)

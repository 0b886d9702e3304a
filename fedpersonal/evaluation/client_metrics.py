"""Metrics of `per_client.csv`: their meaning, their direction, and how they add up over clients."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd

from fedpersonal.evaluation.statistics import (
    PairedDifference,
    client_sums,
    paired_bootstrap,
    remaining_share,
)

# These words take precedence over `_HIGHER`: `auc_loss` and `accuracy_error` are errors.
_LOWER = frozenset(
    "loss error errors rmse mse mae mape msle nll perplexity epsilon crossentropy hinge "
    "divergence poisson logcosh brier false".split()
)
_HIGHER = frozenset(
    "accuracy auc hr ndcg mrr map precision recall f1 fbeta r2 iou sensitivity specificity "
    "similarity true bleu rouge".split()
)
# Clients are compared by the first of these metrics that a run has.
_PREFERRED = ("rmse", "perplexity", "auc", "ndcg", "accuracy", "loss")
# The usual meaning of each metric; a task may override it.
_MEANINGS: Mapping[str, str] = {
    "loss": "what training minimises, a mean over examples",
    "rmse": "root of the mean squared error",
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "accuracy": "share of examples predicted right",
    "auc": "probability that a positive example scores higher than a negative one; 0.5 is chance",
    "perplexity": "e to the power of the loss: the number of equally likely choices that would be "
    "as uncertain",
    "hr": "share of clients whose held-out item is among the {at} with the highest scores{among}",
    "ndcg": "like HR@{at}, but a hit counts 1 at rank 1 and less at each later rank, {least:.2f} "
    "at the last",
}


def meaning(name: str, task_meanings: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """Returns the meaning of a metric in words; None for an unknown metric.

    Args:
        name: A name such as `rmse`, or `hr@10_of_50`.
        task_meanings: The task's meanings of its metrics, which take precedence.
    """
    kind, _, rest = name.partition("@")
    at, _, among = rest.partition("_")
    if name in task_meanings or not rest:
        return task_meanings.get(name) or _MEANINGS.get(name)
    if kind not in _MEANINGS or not at.isdecimal():
        return None
    usual = {"": " of its candidates", "all": " of all items that the client has not"}
    candidates = usual.get(among, f" {among.replace('_', ' ')} candidates")
    return _MEANINGS[kind].format(at=at, among=candidates, least=1 / math.log2(int(at) + 1))


def unit_of(text: str | None) -> str:
    """Returns the unit that a metric's meaning names, such as `stars`; empty if it names none."""
    return (text or "").partition(", in ")[2]


def lower_is_better(name: str) -> bool | None:
    """Returns the direction in which a metric improves.

    Args:
        name: A name such as `rmse`, `eval/loss`, `hr@10_all` or `accuracy_without_oov_before`. A
            word in its last part determines the direction.

    Returns:
        Whether lower values are better; None for unknown metrics.
    """
    words = _words(name)
    if words & _LOWER:
        return True
    return False if words & _HIGHER else None


def find_metric(name: str, names: Iterable[str]) -> str | None:
    """Returns the first of `names` that is the metric `name`, such as `hr@10_of_50` for `hr@10`."""
    return next((n for n in names if n == name or n.startswith(f"{name}_of_")), None)


def find_metrics(metrics: Iterable[str], names: Collection[str]) -> list[str]:
    """Returns those of `names` that `find_metric` finds for `metrics`, in their order."""
    return [match for match in (find_metric(name, names) for name in metrics) if match]


def main_metric(names: list[str]) -> str | None:
    """Returns the metric by which to compare clients; None if no metric's direction is known."""
    for word in _PREFERRED:
        # The shortest name, such as accuracy, comes before accuracy_without_oov.
        lower = word in _LOWER
        candidates = [n for n in names if word in _words(n) and lower_is_better(n) is lower]
        if candidates:
            return min(candidates, key=len)
    return next((name for name in names if lower_is_better(name) is not None), None)


def _words(name: str) -> set[str]:
    last = name.rpartition("/")[2].lower()
    # Keras and other libraries write these words in two parts.
    for pair in ("io_u", "log_cosh", "cross_entropy"):
        last = last.replace(pair, pair.replace("_", ""))
    return {*re.split("[^a-z0-9]+", last)}


def _same(values: np.ndarray) -> np.ndarray:
    return values


# The maps from a client's metric to a mean that adds up over clients, and back.
_MEANS: Mapping[str, tuple[Callable, Callable]] = {
    "rmse": (np.square, np.sqrt),
    "perplexity": (np.log, np.exp),
}


@dataclasses.dataclass(frozen=True)
class ClientMetric:
    """A metric of `per_client.csv`, and how to pool the clients' values.

    Attributes:
        column: The metric's column.
        weights: The column of clients' weights; None for equal weights.
        to_mean: Maps a client's value to the mean that adds up by weights.
        finalize: Maps the mean over clients to the metric.
        scale: The factor of the metric in tables.
    """

    column: str
    weights: str | None = "num_examples"
    to_mean: Callable[[np.ndarray], np.ndarray] = _same
    finalize: Callable[[np.ndarray], np.ndarray] = _same
    scale: float = 1.0

    @classmethod
    def for_metric(
        cls, name: str, column: str, weights: str | None = "num_examples"
    ) -> ClientMetric:
        """Returns a metric by its name, with the maps to and from means that the name implies."""
        return cls(column, weights, *_MEANS.get(name, (_same, _same)))

    def sums(self, clients: pd.DataFrame) -> pd.DataFrame:
        """Returns each client's sums of values and of weights, indexed by the client's name."""
        weights = None if self.weights is None else clients[self.weights]
        sums = client_sums(self.to_mean(clients[self.column].to_numpy()), weights)
        return pd.DataFrame(sums, index=clients["client"].astype(str))

    def overall(self, clients: pd.DataFrame) -> float:
        """Returns the metric of all clients."""
        values, weights = self.sums(clients).to_numpy().sum(0)
        return self.scale * float(self.finalize(values / weights))


def paired_difference(
    ours: Sequence[pd.DataFrame], others: Sequence[pd.DataFrame], metric: ClientMetric
) -> tuple[np.ndarray, PairedDifference]:
    """Returns the difference of two methods' metrics, on the clients that both test.

    Args:
        ours: The first method's clients, rows of `per_client.csv`, one table for each seed.
        others: The second method's tables, seed by seed.
        metric: The metric to compare.

    Returns:
        The difference for each seed, float64 (num_seeds,); and their mean with its interval, where
        a client that several seeds test counts as one. Both are multiplied by the metric's scale.

    Raises:
        ValueError: If a seed has no client in common, or a client has other examples: methods are
            compared on the same examples.
    """
    sums, values = _paired(metric, ours, others)
    difference = paired_bootstrap(*sums, finalize=metric.finalize)
    scaled = (
        metric.scale * value for value in (difference.difference, difference.low, difference.high)
    )
    return metric.scale * (values[0] - values[1]), PairedDifference(*scaled)


def paired_share(
    without: Sequence[pd.DataFrame],
    with_it: Sequence[pd.DataFrame],
    baseline: Sequence[pd.DataFrame],
    metric: ClientMetric,
) -> tuple[np.ndarray, tuple[float, float]] | None:
    """Returns the share of a method's lead over a baseline that remains after a change.

    Args:
        without: The method's clients without an advantage such as a leak, as in
            `paired_difference`.
        with_it: The method's clients with the advantage.
        baseline: The baseline's clients.
        metric: The metric of the lead, a mean.

    Returns:
        The share for each seed, float64 (num_seeds,), and its interval, as in `remaining_share`;
        None unless the lead with the advantage is clearly above 0.

    Raises:
        ValueError: As `paired_difference`.
    """
    _, lead = paired_difference(with_it, baseline, metric)
    if not lead.has_interval or lead.low <= 0:
        return None
    sums, (first, second, third) = _paired(metric, without, with_it, baseline)
    _, low, high = remaining_share(*sums)
    return (first - third) / (second - third), (low, high)


def _paired(
    metric: ClientMetric, *methods: Sequence[pd.DataFrame]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns sums of the clients that all methods test, and each method's metric by seed.

    The shapes are (num_methods, num_seeds, num_clients, 2) and (num_methods, num_seeds), float64.
    """
    seeds = []
    for seed, tables in enumerate(zip(*methods)):
        first, *others = (metric.sums(table) for table in tables)
        for other in others:
            first = first.loc[first.index.intersection(other.index)]
        others = [other.loc[first.index] for other in others]
        if not len(first) or not all(np.allclose(first[1], other[1]) for other in others):
            raise ValueError(f"The rows of table {seed} are not of the same examples.")
        seeds.append((first, *others))
    clients = sorted(set().union(*(first.index for first, *_ in seeds)))
    by_seed = [[one.reindex(clients, fill_value=0.0) for one in seed] for seed in seeds]
    sums = np.moveaxis(np.array(by_seed), 1, 0)
    totals = sums.sum(2)
    return sums, metric.finalize(totals[..., 0] / totals[..., 1])

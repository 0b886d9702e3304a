"""Metrics of `per_client.csv`: what they mean, which way they get better, how they add up."""

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

# A word of these says what is less of: `auc_loss` and `accuracy_error` are a loss and an error.
_LOWER = frozenset(
    "loss error errors rmse mse mae mape msle nll perplexity epsilon crossentropy hinge "
    "divergence poisson logcosh brier false".split()
)
_HIGHER = frozenset(
    "accuracy auc hr ndcg mrr map precision recall f1 fbeta r2 iou sensitivity specificity "
    "similarity true bleu rouge".split()
)
# The first of these that a run has is what its clients are judged by.
_FIRST = ("rmse", "perplexity", "auc", "ndcg", "accuracy", "loss")
# What metrics mean wherever they are met; a task says where it means another thing.
_MEANINGS: Mapping[str, str] = {
    "loss": "what training minimises, a mean over examples",
    "rmse": "root of the mean squared error",
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "accuracy": "share of examples predicted right",
    "auc": "chance that a positive example gets a higher score than a negative one; 0.5 is chance",
    "perplexity": "e to the power of the loss: among how many equally likely choices a model "
    "hesitates",
    "hr": "share of clients whose held-out item is among the {at} of highest scores{among}",
    "ndcg": "like HR@{at}, but a hit counts 1 at the first place, and less at each that follows, "
    "{least:.2f} at the last",
}


def meaning(name: str, own: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """Returns what a metric means, in words; None where that is not known.

    Args:
        name: Such as `rmse`, or `hr@10_of_50`.
        own: What a task says of its metrics, which comes first.
    """
    kind, _, rest = name.partition("@")
    at, _, among = rest.partition("_")
    if name in own or not rest:
        return own.get(name) or _MEANINGS.get(name)
    if kind not in _MEANINGS or not at.isdecimal():
        return None
    of = {"": " of its candidates", "all": " of all items that the client has not"}
    told = of.get(among, f" {among.replace('_', ' ')} candidates")
    return _MEANINGS[kind].format(at=at, among=told, least=1 / math.log2(int(at) + 1))


def unit_of(text: str | None) -> str:
    """Returns the unit that a metric's meaning names, such as `stars`; empty where it has none."""
    return (text or "").partition(", in ")[2]


def lower_is_better(name: str) -> bool | None:
    """Tells which way a metric gets better.

    Args:
        name: Such as `rmse`, `eval/loss`, `hr@10_all` or `accuracy_without_oov_before`: what counts
            is a known word in its last part.

    Returns:
        Whether less of it is better; None where nobody knows.
    """
    words = _words(name)
    if words & _LOWER:
        return True
    return False if words & _HIGHER else None


def find_metric(name: str, names: Iterable[str]) -> str | None:
    """Returns which of some names is a metric, such as `hr@10_of_50` for `hr@10`; None if none."""
    return next((n for n in names if n == name or n.startswith(f"{name}_of_")), None)


def find_metrics(wanted: Iterable[str], names: Collection[str]) -> list[str]:
    """Returns which of some names are the wanted metrics, in the order of what is wanted."""
    return [found for found in (find_metric(name, names) for name in wanted) if found]


def main_metric(names: list[str]) -> str | None:
    """Returns which of some metrics to judge clients by; None where nobody knows a direction."""
    for word in _FIRST:
        # The plain one, such as accuracy, comes before accuracy_without_oov.
        lower = word in _LOWER
        candidates = [n for n in names if word in _words(n) and lower_is_better(n) is lower]
        if candidates:
            return min(candidates, key=len)
    return next((name for name in names if lower_is_better(name) is not None), None)


def _words(name: str) -> set[str]:
    last = name.rpartition("/")[2].lower()
    # Two words that Keras and others write for one.
    for pair in ("io_u", "log_cosh", "cross_entropy"):
        last = last.replace(pair, pair.replace("_", ""))
    return {*re.split("[^a-z0-9]+", last)}


def _same(values: np.ndarray) -> np.ndarray:
    return values


# How a metric of one client becomes a mean that adds up over clients, and back.
_MEANS: Mapping[str, tuple[Callable, Callable]] = {
    "rmse": (np.square, np.sqrt),
    "perplexity": (np.log, np.exp),
}


@dataclasses.dataclass(frozen=True)
class ClientMetric:
    """A metric of `per_client.csv`, and how clients' values make that of them all.

    Attributes:
        column: Its column.
        weights: The column by which clients count; None for all alike.
        to_mean: Maps a client's value to the mean that adds up by weights.
        finalize: Maps the mean over clients to the metric.
        scale: Its factor in tables.
    """

    column: str
    weights: str | None = "num_examples"
    to_mean: Callable[[np.ndarray], np.ndarray] = _same
    finalize: Callable[[np.ndarray], np.ndarray] = _same
    scale: float = 1.0

    @classmethod
    def of(cls, name: str, column: str, weights: str | None = "num_examples") -> ClientMetric:
        """Returns the metric of a name, whose clients' values make means that add up, or are."""
        return cls(column, weights, *_MEANS.get(name, (_same, _same)))

    def sums(self, clients: pd.DataFrame) -> pd.DataFrame:
        """Returns each client's sums of values and of weights, by its name."""
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
    """Returns by how much a method's metric exceeds another's, on the clients that both test.

    Args:
        ours: The method's clients, rows of `per_client.csv`, a table a seed.
        others: The other method's, seed by seed.
        metric: What is compared.

    Returns:
        The difference of each seed, float64 (num_seeds,); and their mean with its interval, a
        client that several seeds test counting as one. Both by the metric's scale.

    Raises:
        ValueError: If a seed has no client in common, or one has other examples: methods are
            compared on the same ones.
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
    guess: Sequence[pd.DataFrame],
    metric: ClientMetric,
) -> tuple[np.ndarray, tuple[float, float]] | None:
    """Returns which share of a method's lead over a guess remains without something.

    Args:
        without: The method's clients without it, as of `paired_difference`.
        with_it: The same with it.
        guess: The same of the guess.
        metric: A mean, of which the lead is.

    Returns:
        The share of each seed, float64 (num_seeds,), and its interval, as of `remaining_share`;
        None if there is no lead with it, or none but for noise.

    Raises:
        ValueError: As `paired_difference`.
    """
    _, lead = paired_difference(with_it, guess, metric)
    if not lead.has_interval or lead.low <= 0:
        return None
    sums, (first, second, third) = _paired(metric, without, with_it, guess)
    _, low, high = remaining_share(*sums)
    return (first - third) / (second - third), (low, high)


def _paired(
    metric: ClientMetric, *methods: Sequence[pd.DataFrame]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns sums of the clients that all methods test, and each method's metric by seed.

    They are float64 (num_methods, num_seeds, num_clients, 2) and (num_methods, num_seeds).
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
    people = sorted(set().union(*(first.index for first, *_ in seeds)))
    by_seed = [[one.reindex(people, fill_value=0.0) for one in seed] for seed in seeds]
    sums = np.moveaxis(np.array(by_seed), 1, 0)
    totals = sums.sum(2)
    return sums, metric.finalize(totals[..., 0] / totals[..., 1])

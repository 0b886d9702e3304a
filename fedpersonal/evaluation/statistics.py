"""Statistics of clients: intervals for differences of methods, and checks of columns.

The paired bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993) resamples
clients with replacement, the same clients for both methods. Its interval covers the choice of test
clients and not the seed of training; the spread over seeds shows the latter.

Percentiles of the bootstrap are too narrow for few clients. Below `MIN_BOOTSTRAP_CLIENTS` clients,
the interval is made of subsets (Hartigan, "Using Subsample Values as Typical Values", JASA 64,
1969): if differences are symmetric around the true value, the means of all non-empty subsets divide
the line into intervals that contain it with equal probability. The interval has the values that an
exact test by sign flips does not reject.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator

MIN_BOOTSTRAP_CLIENTS = 30
"""For fewer clients, the interval is made of subsets instead of the bootstrap."""

MIN_INTERVAL_CLIENTS = 6
"""For fewer clients there is no interval of 95 %: one of 2**5 sign flips is already over 2.5 %."""

# Counts of resamples that are in memory at once.
_CHUNK = 2**22


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """A difference of two metrics on the same clients.

    Attributes:
        difference: The first method's metric minus the second one's; the mean over several runs.
        low: Lower end of the interval; -inf for too few clients.
        high: Upper end of the interval; inf for too few clients.
    """

    difference: float
    low: float
    high: float

    @property
    def is_within_noise(self) -> bool:
        """Whether the interval contains 0; so does the infinite one of too few clients."""
        return self.low <= 0 <= self.high

    @property
    def has_interval(self) -> bool:
        """Whether there are enough clients for an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def client_sums(means: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> np.ndarray:
    """Returns the input of `paired_bootstrap` for clients' means, float64 (num_clients, 2).

    Args:
        means: (num_clients,) floats; any value, NaN too, for a client without weight.
        weights: (num_clients,) floats >= 0, such as numbers of examples; None for equal weights.
    """
    means = np.asarray(means, np.float64)
    weights = np.ones_like(means) if weights is None else np.asarray(weights, np.float64)
    return np.stack([np.where(weights > 0, means, 0) * weights, weights], axis=-1)


def paired_bootstrap(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    finalize: Callable[[np.ndarray], np.ndarray] = lambda mean: mean,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> PairedDifference:
    """Returns the difference of two methods on the same clients, with its interval.

    A metric is `finalize` of a ratio of sums over clients. For a metric pooled over examples, the
    sums are over examples (`client_sums` of clients' means and numbers of examples); for a mean
    over clients, each client has the weight 1.

    Args:
        first: (num_clients, 2) floats: each client's sums of values and of weights, as in
            `ClientResults`. Or (num_runs, num_clients, 2), where a client that a run does not test
            has zeros: a client is then resampled for all runs at once.
        second: The same for the other method, for the same clients in the same order.
        finalize: Maps means to the metric: `np.sqrt` for RMSE, `np.exp` for perplexity.
        confidence: Probability of the interval. Its ends are percentiles of the resamples. Below
            `MIN_BOOTSTRAP_CLIENTS` clients they are order statistics of the subsets, and infinite
            if there are too few subsets.
        resamples: The number of resamples, or the maximal number of subsets.
        seed: Seed of the resamples.

    Raises:
        UserError: If shapes differ, numbers are not finite, or a run has no weight at all.
    """
    sums = _stack_sums(first, second)
    if not (0 < confidence < 1 and resamples >= 1):
        raise UserError(
            "confidence must be between 0 and 1, and resamples at least 1, got"
            f" {confidence!r} and {resamples!r}"
        )

    def compare(metrics: np.ndarray) -> np.ndarray:
        return metrics[0] - metrics[1]

    return PairedDifference(*_bootstrap(sums, compare, finalize, confidence, resamples, seed))


def remaining_share(
    without: npt.ArrayLike, with_it: npt.ArrayLike, baseline: npt.ArrayLike
) -> tuple[float, float, float]:
    """Returns the share of a lead over a baseline that remains without an advantage (a leak).

    The share is (without - baseline) / (with_it - baseline), each a mean as in `paired_bootstrap`.

    Args:
        without: The method's sums without the advantage, as in `paired_bootstrap`.
        with_it: The sums with the advantage. The share is meaningless unless their lead is clearly
            above 0.
        baseline: The baseline's sums.

    Returns:
        The share, the mean over several runs; and the ends of its interval of 95 %.

    Raises:
        UserError: As `paired_bootstrap`.
    """

    def compare(metrics: np.ndarray) -> np.ndarray:
        return (metrics[0] - metrics[2]) / (metrics[1] - metrics[2])

    return _bootstrap(_stack_sums(without, with_it, baseline), compare)


def _bootstrap(
    sums: np.ndarray,
    compare: Callable[[np.ndarray], np.ndarray],
    finalize: Callable[[np.ndarray], np.ndarray] = lambda mean: mean,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Returns `compare` of metrics, (num_methods, resamples, num_runs), and its interval."""
    num_clients = sums.shape[2]
    flat = np.moveaxis(sums, 2, 0).reshape(num_clients, -1)

    def compared(counts: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            totals = (counts @ flat).reshape(len(counts), *sums.shape[:2], 2)
            metrics = finalize(totals[..., 0] / totals[..., 1])
            return compare(np.moveaxis(metrics, 1, 0)).mean(-1)

    point = float(compared(np.ones((1, num_clients)))[0])
    counts = (sums[..., 1] > 0).any((0, 1))
    if counts.sum() < MIN_BOOTSTRAP_CLIENTS:
        values = compared(_subsets(counts, resamples, seed))
        values = np.sort(values[np.isfinite(values)])
        place = math.floor((1 - confidence) / 2 * (len(values) + 1) + 1e-9)
        if not place:
            return point, -math.inf, math.inf
        return point, float(values[place - 1]), float(values[-place])
    chunks = _resample_counts(num_clients, resamples, seed)
    values = np.concatenate([compared(chunk) for chunk in chunks])
    # A resample may have no client of a run, which then has no metric.
    values = values[np.isfinite(values)]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(values, [tail, 100 - tail])
    return point, float(low), float(high)


def _resample_counts(num_clients: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields how often each resample has each client, (resamples of a chunk, num_clients)."""
    rng, chunk = generator(Purpose.BOOTSTRAP, seed), max(1, _CHUNK // num_clients)
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        clients = rng.integers(num_clients, size=(size, num_clients))
        places = clients + num_clients * np.arange(size)[:, np.newaxis]
        counts = np.bincount(places.reshape(-1), minlength=size * num_clients)
        yield counts.reshape(size, num_clients)


def _subsets(counts: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Returns non-empty subsets of the clients with weight, a row each: all, or a random sample.

    Args:
        counts: bool (num_clients,), the clients with weight.
        most: The maximal number of subsets, >= 1.
        seed: Seed of the sample.
    """
    number = int(counts.sum())
    if 2**number - 1 <= most:
        chosen = np.arange(1, 2**number)[:, np.newaxis] >> np.arange(number) & 1
    else:
        chosen = generator(Purpose.BOOTSTRAP, seed).integers(2, size=(most, number))
    subsets = np.zeros((len(chosen), len(counts)))
    subsets[:, counts] = chosen
    return subsets[subsets.any(1)]


def _stack_sums(*methods: npt.ArrayLike) -> np.ndarray:
    """Checks and stacks the methods' sums, float64 (num_methods, num_runs, num_clients, 2)."""
    each = [np.asarray(sums, np.float64) for sums in methods]
    shapes = [sums.shape for sums in each]
    if len({*shapes}) > 1 or len(shapes[0]) not in (2, 3) or shapes[0][-1] != 2:
        raise UserError(
            "all methods must have sums of the shape [num_clients, 2] or [num_runs, num_clients,"
            f" 2], got {' and '.join(str(list(shape)) for shape in shapes)}"
        )
    sums = np.stack(each).reshape(len(each), -1, *shapes[0][-2:])
    if not np.isfinite(sums).all() or not (sums[..., 1].sum(-1) > 0).all():
        raise UserError("sums must be finite, and each run must have clients with weight")
    return sums


def check_column(name: str, column: npt.ArrayLike, length: int) -> np.ndarray:
    """Returns `column` as an array; a UserError names it unless its shape is (length,)."""
    column = np.asarray(column)
    if column.shape != (length,):
        raise UserError(f"{name} must have the shape [{length}], got {list(column.shape)}")
    return column


def check_numbers(name: str, column: npt.ArrayLike, length: int) -> np.ndarray:
    """Returns `column` as float64 (length,); a UserError names it unless it is finite."""
    column = check_column(name, column, length).astype(np.float64)
    check_finite(name, column)
    return column


def check_finite(name: str, numbers: np.ndarray) -> None:
    """Raises a UserError that names the first row that is not finite, if any."""
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        raise UserError(f"{name} must be finite, row {bad[0][0]} is not")


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Returns the area under the ROC curve, pooled over examples.

    It is the probability that a positive example has a higher score than a negative one, where
    equal scores count half; scores are not binned.

    Args:
        labels: (num_examples,) of 0 and 1.
        scores: (num_examples,) floats, such as logits.

    Returns:
        The area; NaN if the examples are all of one class, or there are none.

    Raises:
        UserError: If a label is neither 0 nor 1, a score is not finite, or their numbers differ.
    """
    truth = check_column("labels", labels, len(np.asarray(scores)))
    logits = check_numbers("scores", scores, len(truth))
    if not np.isin(truth, (0, 1)).all():
        raise UserError("labels must be 0 or 1")
    if len(np.unique(truth)) < 2:
        return math.nan
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, logits))

"""Whether two methods differ by more than the choice of test clients explains.

The paired bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993): clients are
drawn with replacement, the same for both methods. What another seed of training would change is not
in it: see the spread over seeds for that.

Percentiles of the bootstrap are too narrow for few clients. Below `FEW` clients the interval is of
subsets (Hartigan, "Using Subsample Values as Typical Values", JASA 64, 1969): of differences that
are symmetric around the truth, the means of all non-empty subsets divide the line into intervals
that have it with equal probability. It is what an exact test by sign flips does not reject.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError

FEW = 30
"""Below so many clients, subsets of them make the interval, not the bootstrap."""

FEWEST = 6
"""Fewer clients than these have no interval of 95 %: of 2**5 sign flips one alone is over 2.5 %."""

# Numbers held at once for the draws.
_CHUNK = 2**22


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """A difference of two metrics on the same clients.

    Attributes:
        difference: The first method's metric minus the second one's; of several runs the mean.
        low: Lower end of its interval; -inf where the clients are too few for any.
        high: Upper end; inf where they are.
    """

    difference: float
    low: float
    high: float

    @property
    def is_within_noise(self) -> bool:
        """Whether the interval has 0 in it, as it has where the clients are too few for one."""
        return self.low <= 0 <= self.high

    @property
    def has_interval(self) -> bool:
        """Whether the clients suffice for an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def client_sums(means: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> np.ndarray:
    """Returns what `paired_bootstrap` takes of each client's mean, float64 (num_clients, 2).

    Args:
        means: (num_clients,) floats; of a client without weight anything, NaN too.
        weights: (num_clients,) floats >= 0, such as numbers of examples; None for all alike.
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
    draws: int = 2_000,
    seed: int = 0,
) -> PairedDifference:
    """Returns the difference of two methods on the same clients, with its interval.

    A metric is `finalize` of a ratio of sums over clients: for a mean over all examples, the sums
    are of examples (`client_sums` of clients' means and numbers of examples); for a mean over
    clients, each has the weight 1.

    Args:
        first: (num_clients, 2) floats: each client's sums of values and of weights, as in
            `ClientResults`. Or (num_runs, num_clients, 2), where a client that a run does not test
            has zeros: a client is then drawn for all runs at once.
        second: The same of the other method, for the same clients in the same order.
        finalize: Maps means to the metric: `np.sqrt` for RMSE, `np.exp` for perplexity.
        confidence: Probability of the interval. Its ends are percentiles of the draws; of fewer
            clients than `FEW`, order statistics of the subsets; of so few that no subsets suffice,
            infinite.
        draws: How often the clients are drawn, or at most so many subsets.
        seed: Fixes the draws.

    Raises:
        UserError: If shapes differ, numbers are not finite, or a run has no weight at all.
    """
    sums = _checked(first, second)
    if not (0 < confidence < 1 and draws >= 1):
        raise UserError(
            "confidence must be between 0 and 1, and draws at least 1, got"
            f" {confidence!r} and {draws!r}"
        )

    def compare(metrics: np.ndarray) -> np.ndarray:
        return metrics[0] - metrics[1]

    return PairedDifference(*_bootstrap(sums, compare, finalize, confidence, draws, seed))


def remaining_share(
    without: npt.ArrayLike, with_it: npt.ArrayLike, guess: npt.ArrayLike
) -> tuple[float, float, float]:
    """Returns which share of a lead over a guess remains without something, such as a leak.

    It is (without - guess) / (with it - guess), each a mean of clients as of `paired_bootstrap`,
    and has its interval.

    Args:
        without: The method's sums without it, as of `paired_bootstrap`.
        with_it: The same with it. Unless its lead is clearly above 0, a share means nothing.
        guess: The same of the guess.

    Returns:
        The share, of several runs the mean; and the ends of its interval of 95 %.

    Raises:
        UserError: As `paired_bootstrap`.
    """

    def compare(metrics: np.ndarray) -> np.ndarray:
        return (metrics[0] - metrics[2]) / (metrics[1] - metrics[2])

    return _bootstrap(_checked(without, with_it, guess), compare)


def _bootstrap(
    sums: np.ndarray,
    compare: Callable[[np.ndarray], np.ndarray],
    finalize: Callable[[np.ndarray], np.ndarray] = lambda mean: mean,
    confidence: float = 0.95,
    draws: int = 2_000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Returns what `compare` makes of metrics, (num_methods, draws, num_runs), and its interval."""
    num_clients = sums.shape[2]
    flat = np.moveaxis(sums, 2, 0).reshape(num_clients, -1)

    def compared(counts: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            totals = (counts @ flat).reshape(len(counts), *sums.shape[:2], 2)
            metrics = finalize(totals[..., 0] / totals[..., 1])
            return compare(np.moveaxis(metrics, 1, 0)).mean(-1)

    point = float(compared(np.ones((1, num_clients)))[0])
    counts = (sums[..., 1] > 0).any((0, 1))
    if counts.sum() < FEW:
        of_subsets = compared(_subsets(counts, draws, seed))
        known = np.sort(of_subsets[np.isfinite(of_subsets)])
        place = math.floor((1 - confidence) / 2 * (len(known) + 1) + 1e-9)
        if not place:
            return point, -math.inf, math.inf
        return point, float(known[place - 1]), float(known[-place])
    drawn_values = np.concatenate([compared(drawn) for drawn in _drawn(num_clients, draws, seed)])
    # A draw may have no client of a run, which then has no metric.
    known = drawn_values[np.isfinite(drawn_values)]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(known, [tail, 100 - tail])
    return point, float(low), float(high)


def _drawn(num_clients: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """Yields how often each client is drawn, (some of the draws, num_clients)."""
    rng, chunk = generator(Purpose.BOOTSTRAP, seed), max(1, _CHUNK // num_clients)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        drawn = rng.integers(num_clients, size=(size, num_clients))
        places = drawn + num_clients * np.arange(size)[:, np.newaxis]
        counts = np.bincount(places.reshape(-1), minlength=size * num_clients)
        yield counts.reshape(size, num_clients)


def _subsets(counts: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Returns non-empty subsets of the clients that count, a row each: all, or so many by chance.

    Args:
        counts: bool (num_clients,): who counts.
        most: How many subsets at most, >= 1.
        seed: Fixes the chance.
    """
    number = int(counts.sum())
    if 2**number - 1 <= most:
        chosen = np.arange(1, 2**number)[:, np.newaxis] >> np.arange(number) & 1
    else:
        chosen = generator(Purpose.BOOTSTRAP, seed).integers(2, size=(most, number))
    subsets = np.zeros((len(chosen), len(counts)))
    subsets[:, counts] = chosen
    return subsets[subsets.any(1)]


def _checked(*methods: npt.ArrayLike) -> np.ndarray:
    """Returns all of them, float64 (num_methods, num_runs, num_clients, 2)."""
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
    """Returns `column` as float64 (length,), once it is also known to be finite."""
    column = check_column(name, column, length).astype(np.float64)
    check_finite(name, column)
    return column


def check_finite(name: str, numbers: np.ndarray) -> None:
    """Raises a UserError that names the first row that is not finite, if there is one."""
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        raise UserError(f"{name} must be finite, row {bad[0][0]} is not")


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Returns the area under the ROC curve, of all examples pooled.

    It is the chance that a positive example has a higher score than a negative one, where equal
    scores count half; nothing is binned.

    Args:
        labels: (num_examples,) of 0 and 1.
        scores: (num_examples,) floats, such as logits.

    Returns:
        The area; NaN where the examples are all of one class, or there are none.

    Raises:
        UserError: If a label is neither 0 nor 1, a score is not finite, or they are not as many.
    """
    truth = check_column("labels", labels, len(np.asarray(scores)))
    logits = check_numbers("scores", scores, len(truth))
    if not np.isin(truth, (0, 1)).all():
        raise UserError("labels must be 0 or 1")
    if len(np.unique(truth)) < 2:
        return math.nan
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, logits))

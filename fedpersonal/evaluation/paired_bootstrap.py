"""Whether two methods differ by more than the choice of test clients explains.

The paired bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993): clients are
drawn with replacement, the same for both methods. What another seed of training would change is not
in it: see the spread over seeds for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedpersonal.errors import UserError

# Numbers held at once for the draws.
_CHUNK = 2**22


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """A difference of two metrics on the same clients.

    Attributes:
        difference: The first method's metric minus the second one's; of several runs the mean.
        low: Lower end of its interval.
        high: Upper end.
    """

    difference: float
    low: float
    high: float

    @property
    def is_within_noise(self) -> bool:
        """Whether the interval has 0 in it."""
        return self.low <= 0 <= self.high


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
        confidence: Probability of the interval, whose ends are percentiles of the draws.
        draws: How often the clients are drawn.
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
    num_clients = sums.shape[2]
    flat = np.moveaxis(sums, 2, 0).reshape(num_clients, -1)

    def differences(counts: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            totals = (counts @ flat).reshape(len(counts), *sums.shape[:2], 2)
            metrics = finalize(totals[..., 0] / totals[..., 1])
        return (metrics[:, 0] - metrics[:, 1]).mean(-1)

    rng, found, chunk = np.random.default_rng(seed), [], max(1, _CHUNK // num_clients)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        drawn = rng.integers(num_clients, size=(size, num_clients))
        places = drawn + num_clients * np.arange(size)[:, np.newaxis]
        counts = np.bincount(places.reshape(-1), minlength=size * num_clients)
        found.append(differences(counts.reshape(size, num_clients)))
    drawn_differences = np.concatenate(found)
    # A draw of few clients may have none of a run, which then has no metric.
    known = drawn_differences[np.isfinite(drawn_differences)]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(known, [tail, 100 - tail])
    return PairedDifference(
        float(differences(np.ones((1, num_clients)))[0]), float(low), float(high)
    )


def _checked(first: npt.ArrayLike, second: npt.ArrayLike) -> np.ndarray:
    """Returns both, float64 (2, num_runs, num_clients, 2)."""
    pair = [np.asarray(sums, np.float64) for sums in (first, second)]
    shapes = [sums.shape for sums in pair]
    if shapes[0] != shapes[1] or len(shapes[0]) not in (2, 3) or shapes[0][-1] != 2:
        raise UserError(
            "both methods must have sums of the shape [num_clients, 2] or [num_runs, num_clients,"
            f" 2], got {list(shapes[0])} and {list(shapes[1])}"
        )
    sums = np.stack(pair).reshape(2, -1, *shapes[0][-2:])
    if not np.isfinite(sums).all() or not (sums[..., 1].sum(-1) > 0).all():
        raise UserError("sums must be finite, and each run must have clients with weight")
    return sums

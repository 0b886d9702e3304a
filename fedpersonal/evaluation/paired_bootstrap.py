"""Whether one method is better than another on the same clients: a bootstrap of the differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedpersonal.data.checks import check_count
from fedpersonal.errors import UserError

_AT_ONCE = 100


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """A mean difference and its interval.

    Attributes:
        mean: The first method's metric less the second's.
        low: Lower end of the interval.
        high: Upper end.
        num_clients: Clients compared, of all seeds.
    """

    mean: float
    low: float
    high: float
    num_clients: int

    @property
    def has_zero(self) -> bool:
        """Whether zero is inside, so that neither method is known to be better."""
        return self.low <= 0 <= self.high


def paired_bootstrap(
    first: Sequence[ArrayLike],
    second: Sequence[ArrayLike],
    *,
    weights: Sequence[ArrayLike] | None = None,
    level: float = 0.95,
    num_draws: int = 10_000,
    seed: int = 0,
) -> PairedDifference:
    """Compares two methods on the same clients (Efron and Tibshirani, 1993, chapter 13).

    As many clients as there are are drawn with replacement, many times, from those of each seed
    apart: seeds differ in more than clients do. The interval is of the percentiles of the mean
    difference, first within a seed, then over seeds.

    Args:
        first: The metric of one method, for each seed (num_clients,); NaN of clients without it.
        second: That of the other, for the same clients in the same order.
        weights: Weights of clients in the mean within a seed, likewise; None for equal ones.
        level: The share of draws inside the interval, between 0 and 1.
        num_draws: How often clients are drawn, >= 1.
        seed: Seed of the draws.

    Raises:
        UserError: If there is no client of a seed, the shapes differ, or an option is out of range.
    """
    check_count("num_draws", num_draws, minimum=1)
    if not 0 < level < 1:
        raise UserError(f"level must be above 0 and below 1, got {level!r}")
    if weights is None:
        weights = [np.ones(np.shape(values)) for values in first]
    if not len(first) == len(second) == len(weights) > 0:
        counts = f"{len(first)}, {len(second)} and {len(weights)}"
        raise UserError(f"both methods and the weights need the same seeds, got {counts} of them")
    random = np.random.default_rng(seed)
    means, drawn, num_clients = 0.0, np.zeros(num_draws), 0
    for number, of_seed in enumerate(zip(first, second, weights)):
        one, other, weight = (np.asarray(values, np.float64) for values in of_seed)
        if not one.shape == other.shape == weight.shape or one.ndim != 1:
            shapes = f"{one.shape}, {other.shape} and {weight.shape}"
            raise UserError(f"the clients of seed {number} differ in number: {shapes}")
        compared = np.isfinite(one) & np.isfinite(other) & (weight > 0)
        if not compared.any():
            raise UserError(f"no client of seed {number} has a metric of both methods")
        difference, weight = (one - other)[compared], weight[compared]
        means += np.average(difference, weights=weight) / len(first)
        for start in range(0, num_draws, _AT_ONCE):
            places = slice(start, min(start + _AT_ONCE, num_draws))
            chosen = random.integers(len(weight), size=(places.stop - start, len(weight)))
            sums = (difference * weight)[chosen].sum(1) / weight[chosen].sum(1)
            drawn[places] += sums / len(first)
        num_clients += len(weight)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return PairedDifference(float(means), float(low), float(high), num_clients)

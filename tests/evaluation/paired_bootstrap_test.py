"""The bootstrap of paired differences, against all draws that there can be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.evaluation.paired_bootstrap import paired_bootstrap


def exact_interval(groups, level):
    """Returns the percentiles of the mean over all draws, each as likely, and the mean."""
    of_groups = []
    for difference, weight in groups:
        draws = itertools.product(range(len(weight)), repeat=len(weight))
        of_groups.append([np.average(difference[list(d)], weights=weight[list(d)]) for d in draws])
    means = [np.mean(pair) for pair in itertools.product(*of_groups)]
    quantiles = [(1 - level) / 2, (1 + level) / 2]
    return np.quantile(means, quantiles), np.mean([np.average(d, weights=w) for d, w in groups])


@pytest.mark.parametrize("level", [0.8, 0.6])
def test_the_interval_is_that_of_all_draws(level):
    first = [np.array([1.0, 4.0, 9.0]), np.array([2.0, 2.0, 3.0])]
    second = [np.array([1.0, 3.0, 4.0]), np.array([3.0, 1.5, 0.0])]
    weights = [np.array([1.0, 2.0, 1.0]), np.array([1.0, 1.0, 3.0])]
    for chosen in (slice(0, 1), slice(0, 2)):
        groups = [(a - b, w) for a, b, w in zip(first, second, weights)][chosen]
        (low, high), mean = exact_interval(groups, level)
        found = paired_bootstrap(
            first[chosen],
            second[chosen],
            weights=weights[chosen],
            level=level,
            num_draws=40_000,
        )
        assert found.mean == pytest.approx(mean)
        assert (found.low, found.high) == pytest.approx((low, high), abs=0.03)
        assert found.num_clients == 3 * len(groups)


def test_what_is_common_to_both_methods_does_not_count():
    random = np.random.default_rng(0)
    clients = random.normal(scale=100.0, size=50)
    better = paired_bootstrap([clients - 1 + random.normal(scale=0.1, size=50)], [clients])
    assert -1.1 < better.low < better.mean < better.high < -0.9 and not better.has_zero
    same = paired_bootstrap([clients + random.normal(size=50)], [clients])
    assert same.has_zero


def test_clients_without_a_metric_are_left_out_and_seeds_count_alike():
    first, second = [[1.0, np.nan, 1.0], [5.0]], [[0.0, 7.0, 0.0], [2.0]]
    found = paired_bootstrap(first, second, num_draws=10)
    assert (found.mean, found.low, found.high, found.num_clients) == (2.0, 2.0, 2.0, 3)
    assert found == paired_bootstrap(first, second, num_draws=10, seed=1)


@pytest.mark.parametrize(
    ("first", "second", "options", "said"),
    [
        ([[1.0]], [[1.0, 2.0]], {}, "seed 0 differ in number"),
        ([[1.0]], [[1.0], [2.0]], {}, "need the same seeds"),
        ([], [], {}, "need the same seeds"),
        ([[np.nan]], [[1.0]], {}, "no client of seed 0"),
        ([[1.0]], [[1.0]], {"level": 1.0}, "level must be above 0 and below 1"),
        ([[1.0]], [[1.0]], {"num_draws": 0}, "num_draws must be a whole number >= 1"),
    ],
)
def test_mistakes(first, second, options, said):
    with pytest.raises(UserError, match=said):
        paired_bootstrap(first, second, **options)

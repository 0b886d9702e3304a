"""Intervals of few clients and of many: by their subsets, and by the bootstrap."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import ClientMetric, paired_share
from fedpersonal.evaluation.statistics import (
    MIN_INTERVAL_CLIENTS,
    client_sums,
    paired_bootstrap,
    remaining_share,
)


def test_the_interval_of_few_clients_is_that_of_all_their_subsets():
    first, second = np.array([1.0, 2.0, 6.0, 9.0]), np.array([0.5, 2.5, 3.0, np.nan])
    weights = np.array([1.0, 3.0, 2.0, 0.0])  # The last one is not there.
    differences = []
    for chosen in itertools.product([False, True], repeat=3):
        n = weights[:3][list(chosen)]
        if len(n):
            one, two = ((n * v[:3][list(chosen)]).sum() / n.sum() for v in (first, second))
            differences.append(np.sqrt(one) - np.sqrt(two))
    sums = client_sums(first, weights), client_sums(second, weights)
    found = paired_bootstrap(*sums, finalize=np.sqrt, confidence=0.6)
    mean = np.sqrt((weights * first)[:3].sum() / 6) - np.sqrt((weights * second)[:3].sum() / 6)
    assert found.difference == pytest.approx(mean)
    # 7 subsets make 8 intervals; 60 % of them are those between the first and the last subset.
    assert (found.low, found.high) == pytest.approx((min(differences), max(differences)))
    nothing = paired_bootstrap(*sums, finalize=np.sqrt)
    assert (nothing.low, nothing.high) == (-np.inf, np.inf)
    assert nothing.is_within_noise and not nothing.has_interval


@pytest.mark.parametrize(
    ("number", "draw"),
    [(5, "normal"), (6, "normal"), (6, "heavy"), (10, "skewed"), (29, "normal")],
)
def test_few_clients_seldom_make_a_false_claim(number, draw):
    """Where there is no difference, in 500 draws of clients."""
    random = np.random.default_rng(number)
    drawn = {
        "normal": lambda: random.normal(size=number),
        "heavy": lambda: random.standard_t(2, number),
        "skewed": lambda: random.exponential(size=number) - 1,
    }
    claims, nothing = 0, client_sums(np.zeros(number))
    for _ in range(500):
        found = paired_bootstrap(client_sums(drawn[draw]()), nothing, resamples=500)
        claims += not found.is_within_noise
    # The bootstrap claims 49, 16, 15, 11, 7 and 6 % of normal ones. Three deviations are 3 %.
    assert claims <= 500 * (0.10 if draw == "skewed" else 0.05) + 15
    assert found.has_interval == (number >= MIN_INTERVAL_CLIENTS)
    if number < MIN_INTERVAL_CLIENTS:
        assert not claims


@pytest.mark.parametrize("pooled", [False, True])
def test_many_clients_come_to_the_normal_approximation(pooled):
    random = np.random.default_rng(1)
    weights = random.integers(1, 40, 2_000) if pooled else np.ones(2_000)
    common = random.normal(size=2_000) * 5  # Cancels, since clients are drawn for both.
    first, second = common + random.normal(0.1, 1, 2_000), common
    found = paired_bootstrap(client_sums(first, weights), client_sums(second, weights))
    n = weights / weights.mean()
    mean = (n * (first - second)).mean()
    error = np.sqrt(((n * (first - second - mean)) ** 2).mean() / 2_000)
    assert found.difference == pytest.approx(mean)
    assert found.low == pytest.approx(mean - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(mean + 1.96 * error, abs=0.15 * error)


def test_noise_is_told_from_a_difference():
    random = np.random.default_rng(0)
    common = random.normal(size=500)
    same, better = (common + random.normal(shift, 0.1, 500) for shift in (0, -0.5))
    assert paired_bootstrap(client_sums(common), client_sums(same)).is_within_noise
    found = paired_bootstrap(client_sums(better), client_sums(common))
    assert not found.is_within_noise and found.high < 0
    few = client_sums(random.normal(-1, 0.2, 12))
    assert paired_bootstrap(few, client_sums(np.zeros(12))).high < 0
    one_seed = [paired_bootstrap(client_sums(better), client_sums(same), seed=n) for n in (3, 3, 4)]
    assert one_seed[0] == one_seed[1] != one_seed[2]


def test_a_client_of_several_runs_is_drawn_for_all_of_them():
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 300))
    one = client_sums(first), client_sums(second)
    twice = [np.stack([sums, sums]) for sums in one]
    assert paired_bootstrap(*twice) == paired_bootstrap(*one)
    # Of runs with other clients the mean of the metrics counts, not the pooled one.
    apart = np.zeros((2, 2, 300, 2))
    for row, values in zip(apart, (first, second)):
        row[0, :200] = client_sums(values[:200])
        row[1, 200:] = client_sums(values[200:])
    mean = ((first - second)[:200].mean() + (first - second)[200:].mean()) / 2
    assert paired_bootstrap(*apart).difference == pytest.approx(mean)


def test_the_share_that_remains_of_a_lead_comes_to_the_delta_method():
    """A ratio of two means over the same clients, who have a level of their own."""
    random = np.random.default_rng(3)
    level = random.normal(size=2_000) * 2
    guess, without, with_it = (level + random.normal(m, 1, 2_000) for m in (0.0, 0.3, 0.5))
    share, low, high = remaining_share(*map(client_sums, (without, with_it, guess)))
    first, second = without - guess, with_it - guess
    assert share == pytest.approx(first.mean() / second.mean())
    residuals = (first - share * second) / second.mean()
    error = np.sqrt((residuals**2).mean() / 2_000)
    assert low == pytest.approx(share - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(share + 1.96 * error, abs=0.2 * error)


def test_a_share_is_of_the_clients_that_all_have_and_of_a_lead_that_there_is():
    random = np.random.default_rng(4)
    names = [f"c{n}" for n in range(40)]

    def tables(mean, missing):
        """Two seeds, each without a client."""
        seeds = (pd.DataFrame({"client": names, "hr": random.normal(mean, 0.1, 40)}) for _ in "ab")
        return [table.drop(index=missing) for table in seeds]

    metric = ClientMetric("hr", weights=None, scale=100)
    without, with_it, guess = tables(0.4, 3), tables(0.7, 5), tables(0.2, 7)
    by_seed, (low, high) = paired_share(without, with_it, guess, metric)
    for seed, share in enumerate(by_seed):
        means = [
            one[seed].drop(index=[3, 5, 7], errors="ignore")["hr"].mean()
            for one in (without, with_it, guess)
        ]
        assert share == pytest.approx((means[0] - means[2]) / (means[1] - means[2]))
    assert low < by_seed.mean() < high
    # Behind the guess, and ahead of it by noise.
    assert paired_share(without, guess, with_it, metric) is None
    assert paired_share(without, guess, guess, metric) is None


def test_clients_without_examples_count_nothing():
    means, weights = [1.0, np.nan, 3.0], [2, 0, 1]
    np.testing.assert_array_equal(client_sums(means, weights), [[2, 2], [0, 0], [3, 1]])
    sums = client_sums([[1.0, np.nan] * 6], [[1, 0] * 6])
    assert paired_bootstrap(sums, 2 * sums).difference == 0  # A ratio of sums.
    assert paired_bootstrap(sums, sums * [3, 1]).high == -2


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.ones((3, 2)), np.ones((4, 2)), r"got \[3, 2\] and \[4, 2\]"),
        (np.ones(3), np.ones(3), r"got \[3\]"),
        (np.full((3, 2), np.nan), np.ones((3, 2)), "must be finite"),
        (np.ones((3, 2)) * [1, 0], np.ones((3, 2)), "clients with weight"),
    ],
)
def test_refuses(first, second, message):
    with pytest.raises(UserError, match=message):
        paired_bootstrap(first, second)
    with pytest.raises(UserError, match="confidence must be between 0 and 1"):
        paired_bootstrap(np.ones((3, 2)), np.ones((3, 2)), confidence=1.5)

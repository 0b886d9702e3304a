from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.training import clients as sampling


def _sampler(**options):
    defaults = {"num_clients": 50, "clients_per_round": 10, "seed": 3}
    return sampling.ClientSampler(**{**defaults, **options})


def test_draws_distinct_clients():
    for round_number in range(1, 200):
        drawn = _sampler().sample(round_number)
        assert len(set(drawn)) == len(drawn) == 10
        assert drawn.min() >= 0 and drawn.max() < 50


def test_draw_depends_on_seed_and_round_alone():
    forwards, backwards = _sampler(dropout_rate=0.3), _sampler(dropout_rate=0.3)
    first = [forwards.sample(r) for r in range(1, 20)]
    second = [backwards.sample(r) for r in reversed(range(1, 20))][::-1]
    for one, other in zip(first, second):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(_sampler().sample(1), _sampler().sample(2))
    assert not np.array_equal(_sampler().sample(1), _sampler(seed=4).sample(1))


def test_every_client_is_drawn_equally_often():
    counts = np.zeros(50)
    for round_number in range(5000):
        counts[_sampler().sample(round_number)] += 1
    # Each count is binomial(5000, 0.2): 1000 with standard deviation 28.
    assert np.all(np.abs(counts - 1000) < 5 * 28.3)


def test_dropouts_leave_the_draw_otherwise_alone():
    for round_number in range(50):
        drawn = _sampler().sample(round_number)
        stayed = _sampler(dropout_rate=0.5).sample(round_number)
        np.testing.assert_array_equal(stayed, drawn[np.isin(drawn, stayed)])


def test_dropout_rate_is_the_share_that_leaves():
    stayed = sum(len(_sampler(dropout_rate=0.3).sample(r)) for r in range(3000))
    # 30,000 draws of one that stays with chance 0.7: standard deviation 79.
    assert abs(stayed - 21_000) < 5 * 79.4


def test_one_client_stays_in_any_case():
    sampler = _sampler(clients_per_round=2, dropout_rate=0.99)
    sizes = [len(sampler.sample(r)) for r in range(500)]
    assert min(sizes) == 1


def test_poisson_sampling_draws_each_client_by_itself():
    """Sizes vary as of 50 draws at .2 each: mean 10, variance 8; and each client comes equally."""
    sampler = _sampler(sampling="poisson")
    drawn = [sampler.sample(r) for r in range(5000)]
    sizes, counts = np.array(list(map(len, drawn))), np.bincount(np.concatenate(drawn))
    assert all(len(set(one)) == len(one) for one in drawn)
    assert abs(sizes.mean() - 10) < 5 * np.sqrt(8 / 5000)
    assert abs(sizes.var() - 8) < 5 * 8 * np.sqrt(2 / 5000)
    assert np.all(np.abs(counts - 1000) < 5 * 28.3)
    pairs = np.mean([{3, 4} <= set(one) for one in drawn])
    assert abs(pairs - 0.04) < 5 * np.sqrt(0.04 * 0.96 / 5000)
    np.testing.assert_array_equal(drawn[7], _sampler(sampling="poisson").sample(7))


def test_poisson_rounds_may_be_empty():
    options = {"sampling": "poisson", "clients_per_round": 2}
    assert 0 in {len(_sampler(**options).sample(r)) for r in range(100)}
    assert 0 in {len(_sampler(dropout_rate=0.9, **options).sample(r)) for r in range(20)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clients": 0}, "num_clients is 0"),
        ({"clients_per_round": 51}, "clients_per_round is 51.* between 1 and .* 50"),
        ({"clients_per_round": 0}, "clients_per_round is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"dropout_rate": 1.0}, "dropout_rate is 1.0"),
        ({"sampling": "all"}, "sampling is 'all'; it must be one of fixed, poisson"),
    ],
)
def test_names_the_option_out_of_range(options, message):
    with pytest.raises(UserError, match=message):
        _sampler(**options)

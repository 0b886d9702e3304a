"""Participation by options: what a run counts and says, and what it refuses."""

from __future__ import annotations

import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.tasks.find import all_tasks
from fedpersonal.training.budget import PrivacyBudget

TASKS = all_tasks()
MOVIELENS = TASKS["movielens"]
ASKED = {
    "dropout_rate": 0.1,
    "lost_update_rate": 0.3,
    "over_selection": 0.4,
    "round_time_limit": 60.0,
    "lost_clients_keep": True,
}


def test_a_run_counts_and_sums_up(tiny):
    """Of a method whose clients keep what they have."""
    finished = tiny.run(MOVIELENS, method="furl", **ASKED)
    metrics = pd.read_csv(finished.path / "metrics.csv")
    told = finished.summary["participation"]
    assert told == {name: pytest.approx(metrics[name].sum()) for name in told}
    assert told["num_drawn"] == 14  # Of five in each of two rounds, 1.4 times as many.
    seconds = told.pop("simulated_seconds")
    assert 2 * 1.0 < seconds <= 2 * 60.0
    assert told.pop("num_drawn") == sum(told.values())


@pytest.mark.exhaustive
def test_options_are_those_of_the_trainer(tiny):
    experiment = tiny.build(MOVIELENS, method="fed_recon")
    assert experiment.options.participation is None
    assert experiment.trainer.participation_columns == []
    asked = {"min_examples": 2, "clock_speed_spread": 0.3, "dropout_rate": 0.1}
    found = tiny.build(MOVIELENS, method="fed_recon", **asked).options.participation
    assert (found.min_examples, found.clock.speed_spread, found.dropout_rate) == (2, 0.3, 0.1)


@pytest.mark.exhaustive
def test_noise_is_found_for_the_clients_that_may_be_drawn(tiny):
    private = {"weighting": "uniform", "client_sampling": "poisson", "dp_target_epsilon": 5.0}
    private["dp_noise"] = "secret"
    experiment = tiny.build(MOVIELENS, method="fed_recon", min_examples=17, **private)
    counts = experiment.data.train.counts
    eligible = int((counts >= 17).sum())
    assert 5 < eligible < len(counts)
    budget = experiment.trainer.budget
    assert budget.num_clients == eligible
    expected = PrivacyBudget.for_epsilon(
        5.0, rounds=2, num_clients=eligible, clients_per_round=5, sampling="poisson"
    )
    assert budget == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"over_selection": 0.3, "client_sampling": "poisson"},
            "with Poisson sampling that number is random",
        ),
        (
            {"over_selection": 0.3, "dp_noise_multiplier": 1.0, "weighting": "uniform"},
            "over_selection uses the fastest",
        ),
        ({"round_time_limit": 0.5}, "no client reports so early"),
        ({"lost_clients_keep": True}, "lost_clients_keep has no effect without"),
        ({"lost_clients_keep": True, "lost_update_rate": 0.1}, "those of fed_recon keep none"),
        ({"lost_update_rate": 1.0}, "--lost_update_rate is 1.0"),
        ({"min_examples": 10**6}, "min_examples is 1000000, but no client has more than"),
        ({"lost_update_rate": 0.1, "method": "centralized"}, "centralized has no rounds that"),
        ({"dropout_rate": 0.1, "method": "local_only"}, "local_only has no rounds that"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_in_a_line(tiny, options, said):
    with pytest.raises(UserError, match=said) as refused:
        tiny.build(MOVIELENS, **{"method": "fed_recon", **options})
    assert "\n" not in str(refused.value)

"""The table of differential privacy in small, by real runs."""

from __future__ import annotations

import json

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from experiments.papers import dp_table
from experiments.papers.reproduction import Reproduction
from fedpersonal.errors import UserError

PAPER, PRIVATE = "movielens_paper: epsilon 8", "movielens_private: epsilon 1"
UNTRAINED, CLIPPED = "movielens_private: no training", "movielens_private: clipping alone"
ROWS = [UNTRAINED, PAPER, CLIPPED, PRIVATE]


@pytest.fixture(name="asked", scope="module")
def _reproduction(few_ratings, tmp_path_factory):
    """A reproduction of few ratings, of which four rows are wanted."""
    folder = tmp_path_factory.mktemp("dp_table")
    given = {"ratings_file": few_ratings, "embedding_dim": 2}
    given["clients_per_round"] = 4
    return Reproduction(folder, [3], scale_rounds=0.02, given=given, rows=ROWS, isolated=False)


def test_rows_are_their_runs_and_the_floor_is_the_initial_model(asked):
    page = dp_table.run(asked).write(asked.output_dir)
    assert "extrapolated, not measured" in page and "epsilon of 1,000,000 users (extra" in page
    assert (asked.output_dir / "dp_table.png").stat().st_size > 10_000
    cells = json.loads((asked.output_dir / "dp_table.json").read_text())["tables"]["test"]
    assert list(cells) == ROWS

    def summary(name):
        folder = asked.output_dir / name.replace(": ", "_").replace(" ", "_")
        return json.loads((folder / "seed_3/summary.json").read_text())

    for name in ROWS:
        assert cells[name]["RMSE"]["values"] == [summary(name)["test"]["rmse"]]
    for name, epsilon, rounds in ((PAPER, 8, 6), (PRIVATE, 1, 2)):
        told = summary(name)["privacy"]
        assert 0.98 * epsilon < told["epsilon"] <= epsilon
        assert (told["rounds"], told["client_sampling"]) == (rounds, "poisson")
        assert cells[name][dp_table.NOISE]["values"] == [told["noise_multiplier"]]
    assert (summary(UNTRAINED)["rounds"], summary(CLIPPED)["rounds"]) == (0, 2)
    assert summary(UNTRAINED)["test"]["rmse"] != summary(CLIPPED)["test"]["rmse"]
    assert summary(CLIPPED)["privacy"]["noise_multiplier"] == 0
    for name in (UNTRAINED, CLIPPED):
        assert dp_table.NOISE not in cells[name]


def test_what_is_there_is_not_done_again_and_other_rows_are_refused(asked, capsys, caplog):
    dp_table.run(asked)
    assert capsys.readouterr().out.count("done before") == 4
    assert "goes on with" not in caplog.text
    with pytest.raises(UserError, match="'epsilon 3' is no row of dp_table"):
        dp_table.run(asked.replace(rows=["epsilon 3"]))


def test_a_million_users_at_the_same_rate_have_the_same_noise_in_the_mean():
    told = {"num_clients": 4_000, "clients_per_round": 500, "noise_multiplier": 0.5, "rounds": 80}
    found = dp_table.epsilon_of_many(told, delta=1e-6)
    # 0.5 / 500 of the bound on an update is 125 / 125,000 of it.
    oracle = PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.125, dp_accounting.GaussianDpEvent(125.0))
    oracle.compose(event, 80)
    assert found == pytest.approx(oracle.get_epsilon(1e-6), rel=0.02)


def test_presets_chosen_without_privacy_differ_by_what_it_demands_alone():
    for preset in (dp_table.PAPER, dp_table.BEST):
        row = dp_table.AT[preset][8]
        of_privacy = {"dp_target_epsilon", "dp_clipping", "dp_noise", "weighting"}
        of_privacy |= {"client_sampling", "total_rounds"}
        assert row.preset == preset and {*row.values} <= of_privacy

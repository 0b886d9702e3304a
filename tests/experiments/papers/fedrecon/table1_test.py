"""Table 1 of FedRecon in small, by real runs with two seeds."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from experiments.papers.fedrecon import edge_of_stability, table1
from experiments.papers.reproduction import Reproduction
from fedpersonal.errors import UserError

STANDARD, FINETUNED = "FedAvg + StandardEval", "FedAvg + fine-tuning (seen users)"
SEEN = [STANDARD, FINETUNED, "FedRecon (seen users)"]
ROWS = ["FedRecon", *SEEN]


@pytest.fixture(name="asked", scope="module")
def _reproduction(few_ratings, tmp_path_factory):
    """A reproduction of few ratings, of which some rows are wanted."""
    folder = tmp_path_factory.mktemp("table1")
    given = {"ratings_file": few_ratings, "embedding_dim": 2}
    return Reproduction(folder, [3, 4], scale_rounds=0.002, given=given, rows=ROWS, isolated=False)


@pytest.fixture(name="page", scope="module")
def _page(asked):
    return table1.run(asked).write(asked.output_dir)


@pytest.fixture(name="tables", scope="module")
def _tables(asked, page):
    found = json.loads((asked.output_dir / "table1.json").read_text())
    assert found["seeds"] == [3, 4]
    return found["tables"]


def summaries(asked, folder):
    paths = [asked.output_dir / folder / f"seed_{seed}/summary.json" for seed in (3, 4)]
    return [json.loads(path.read_text()) for path in paths]


def test_figures_are_means_and_deviations_over_seeds(asked, page, tables):
    assert "ratings (a stand-in: the paper's are MovieLens-1M's)" in page
    assert "Mean ± standard deviation over 2 seeds." in page
    runs = summaries(asked, "fedavg_standardeval")
    assert [(run["seed"], run["rounds"], run["evaluate_on"]) for run in runs] == [
        (3, 2, "seen"),
        (4, 2, "seen"),
    ]
    rmse = [run["test"]["rmse"] for run in runs]
    cell = tables["seen"][STANDARD]["RMSE"]
    assert (cell["values"], cell["published"]) == (rmse, 0.939)
    assert cell["sd"] == pytest.approx(np.std(rmse, ddof=1))
    assert f"| 0.939         | {np.mean(rmse):.3f} ± {np.std(rmse, ddof=1):.3f} " in page
    accuracy = tables["unseen"]["FedRecon"]["accuracy %"]
    assert (accuracy["published"], len(accuracy["values"])) == (43.3, 2)
    config = json.loads((asked.output_dir / "fedrecon/seed_3/config.json").read_text())
    assert config["options"]["max_update_norm"] == 20


def test_rows_are_by_users_with_guesses_and_differences(asked, tables):
    unseen, seen = tables["unseen"], tables["seen"]
    guesses = [name for name in unseen if name.startswith("Guess: ")]
    assert len(guesses) == 5
    assert list(unseen) == ["FedRecon", *guesses] and list(seen) == [*SEEN, *guesses]
    for cells, reference in ((unseen, "FedRecon"), (seen, "FedRecon (seen users)")):
        assert not {table1.BEHIND, table1.LESS} & cells[reference].keys()
        for row in cells.keys() - {reference}:
            for name, column in (("RMSE", table1.BEHIND), ("accuracy %", table1.LESS)):
                pair = [np.array(cells[r][name]["values"]) for r in (row, reference)]
                found = cells[row][column]
                assert found["values"] == pytest.approx((pair[0] - pair[1]).tolist(), abs=1e-5)
                # Two unseen users are too few for an interval.
                assert (found["interval"] is None) == (cells is unseen)
                if found["interval"]:
                    assert found["interval"][0] <= found["mean"] <= found["interval"][1]


def test_methods_that_personalise_say_what_was_before(asked, tables):
    seen = tables["seen"]
    assert table1.BEFORE not in seen[STANDARD]
    # Both rows share a training; only what follows it differs.
    assert seen[FINETUNED][table1.BEFORE]["values"] == seen[STANDARD]["RMSE"]["values"]
    assert seen[FINETUNED]["RMSE"]["values"] != seen[STANDARD]["RMSE"]["values"]
    told = summaries(asked, "fedavg_fine-tuning_seen_users")
    assert [run["trained_by"] for run in told] == ["fed_avg", "fed_avg"]
    clients = pd.read_csv(asked.output_dir / "fedavg_fine-tuning_seen_users/seed_3/per_client.csv")
    total = np.average(clients["rmse_after"] ** 2, weights=clients["num_examples"])
    assert np.sqrt(total) == pytest.approx(told[0]["test"]["rmse"], rel=1e-5)


def test_seen_users_are_split_both_ways(page, tables):
    cells = tables["time_split"]
    assert list(cells)[:3] == SEEN and len(cells) == 8
    for row in SEEN:
        by_time, random = (cells[row][f"RMSE, {by}"]["values"] for by in ("time", "random"))
        assert by_time == tables["seen"][row]["RMSE"]["values"] != random
    assert "What a random split is worth**, on ratings, which has times" in page


def test_data_without_times_have_a_stand_in_that_has(few_ratings, tmp_path):
    path = tmp_path / "timeless.csv"
    pd.read_csv(few_ratings).drop(columns="time").to_csv(path, index=False)
    given = {"ratings_file": str(path), "embedding_dim": 2}
    asked = Reproduction(tmp_path / "out", scale_rounds=0.002, given=given, rows=[STANDARD])
    page = table1.run(asked.replace(isolated=False)).write(asked.output_dir)
    assert "random ones, since these data have no times" in page
    assert "on movielens-100k, which has times" in page


def test_the_edge_of_stability_is_of_one_training(few_ratings, tmp_path):
    given = {"ratings_file": few_ratings, "embedding_dim": 2}
    rows = [table1.CENTRALIZED.name]
    asked = Reproduction(tmp_path, scale_rounds=0.4, given=given, rows=rows, isolated=False)
    page = table1.run(asked).write(tmp_path)
    cells = json.loads((tmp_path / "table1.json").read_text())["tables"]["edge_of_stability"]
    assert list(cells) == [f"rebuilding at {rate:.2f}" for rate in edge_of_stability.RATES]
    trained = [p.parent for p in tmp_path.glob("edge_of_stability/*/*/metrics.csv")]
    assert trained == [tmp_path / "edge_of_stability/rate_0.10/seed_0"]
    rmse = [cell["RMSE"]["mean"] for cell in cells.values()]
    assert len(set(rmse)) == len(rmse)
    # There are two test users, and fifty to be drawn: each draw is of both.
    of_draws = [cell["RMSE, 500 draws"] for cell in cells.values()]
    assert [draws["mean"] for draws in of_draws] == pytest.approx(rmse)
    assert [draws["sd"] for draws in of_draws] == pytest.approx([0] * len(rmse))
    assert "Why 1.36?" in page and "seen" not in json.loads((tmp_path / "table1.json").read_text())


def test_other_options_are_refused_before_anything_runs(asked, page, capsys):
    table1.run(asked)
    assert capsys.readouterr().out.count("done before") == 8 + 12
    other = asked.replace(given={**asked.given, "embedding_dim": 3})
    with pytest.raises(UserError, match="embedding_dim was 2 and is now 3"):
        table1.run(other)
    with pytest.raises(UserError, match="'FedReco' is no row of table 1"):
        table1.run(asked.replace(rows=["FedReco"]))

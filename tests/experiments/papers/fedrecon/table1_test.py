"""Table 1 of FedRecon in small, by real runs with two seeds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.papers.fedrecon import table1
from experiments.papers.sweep import Sweep
from fedpersonal.errors import UserError

ROWS = ["FedAvg + StandardEval", "FedRecon"]


@pytest.fixture(name="sweep", scope="module")
def _sweep(few_ratings, tmp_path_factory):
    """A sweep of few ratings, of which two rows are wanted."""
    folder = tmp_path_factory.mktemp("table1")
    given = {"ratings_file": few_ratings, "embedding_dim": 2}
    return Sweep(folder, [3, 4], scale_rounds=0.002, given=given, rows=ROWS, isolated=False)


def test_figures_are_means_and_deviations_over_seeds(sweep):
    page = table1.run(sweep).write(sweep.output_dir)
    assert "ratings (a stand-in: the paper's are MovieLens-1M's)" in page
    assert "Mean ± standard deviation over 2 seeds." in page
    found = json.loads((sweep.output_dir / "table1.json").read_text())
    assert found["seeds"] == [3, 4] and list(found["tables"]["test"]) == ROWS
    folder = sweep.output_dir / "fedavg_standardeval"
    runs = [json.loads((folder / f"seed_{n}" / "summary.json").read_text()) for n in (3, 4)]
    assert [(run["seed"], run["rounds"], run["evaluate_on"]) for run in runs] == [
        (3, 2, "seen"),
        (4, 2, "seen"),
    ]
    rmse = [run["test"]["rmse"] for run in runs]
    cell = found["tables"]["test"][ROWS[0]]["RMSE"]
    assert (cell["values"], cell["published"]) == (rmse, 0.939)
    assert cell["sd"] == pytest.approx(np.std(rmse, ddof=1))
    mean, sd, off = np.mean(rmse), np.std(rmse, ddof=1), np.mean(rmse) - 0.939
    assert f"| 0.939         | {mean:.3f} ± {sd:.3f} | {off:+.3f} " in page
    accuracy = found["tables"]["test"]["FedRecon"]["accuracy %"]
    assert (accuracy["published"], len(accuracy["values"])) == (43.3, 2)
    config = json.loads((sweep.output_dir / "fedrecon/seed_3/config.json").read_text())
    assert config["options"]["max_update_norm"] == 20


def test_other_options_are_refused_before_anything_runs(sweep, capsys):
    table1.run(sweep)
    assert capsys.readouterr().out.count("done before") == 4
    other = sweep.replace(given={**sweep.given, "embedding_dim": 3})
    with pytest.raises(UserError, match="embedding_dim was 2 and is now 3"):
        table1.run(other)
    with pytest.raises(UserError, match="'FedReco' is no row of table 1"):
        table1.run(sweep.replace(rows=["FedReco"]))

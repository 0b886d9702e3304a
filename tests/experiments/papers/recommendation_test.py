"""The table of recommendation in small, by real runs."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from experiments.papers import recommendation
from experiments.papers.reproduction import Reproduction
from fedpersonal.errors import UserError
from fedpersonal.tasks.interactions.task import TASK

ROWS = ["Popularity", "FedMF", "PFedRec", "Local training"]
FAIR, LEAKING = "unobserved_in_training", "never_held_out"


@pytest.fixture(name="asked", scope="module")
def _reproduction(few_ratings, tmp_path_factory):
    """A reproduction of few interactions, of which four rows are wanted."""
    given = {"interactions_file": few_ratings, "clients_per_round": 4, "embedding_dim": 2}
    given["compile"] = False
    folder = tmp_path_factory.mktemp("recommendation")
    return Reproduction(folder, [3], scale_rounds=0.01, given=given, rows=ROWS, isolated=False)


def test_rows_are_their_runs_beside_the_published_figures(asked):
    page = recommendation.run(asked).write(asked.output_dir)
    assert "held out (by time)" in page and "73.3" in page
    tables = json.loads((asked.output_dir / "recommendation.json").read_text())["tables"]
    assert list(tables) == [FAIR, LEAKING]
    for negatives, cells in tables.items():
        assert list(cells) == ROWS
        folder = asked.output_dir / negatives
        for name, folder_name in (("FedMF", "fedmf"), ("Local training", "local_training")):
            path = folder / folder_name / "seed_3"
            test = json.loads((path / "summary.json").read_text())["test"]
            config = json.loads((path / "config.json").read_text())
            assert config["options"]["negatives"] == negatives
            for column, metric in recommendation.COLUMNS.items():
                key = metric if metric.endswith("_all") else f"{metric}_of_11"
                assert cells[name][column]["values"] == [pytest.approx(100 * test[key])]
        assert cells["FedMF"]["HR@10"]["published"] == 65.2
        ours, others = (
            pd.read_csv(folder / name / "seed_3/per_client.csv") for name in ("pfedrec", "fedmf")
        )
        found = cells["PFedRec"]["HR@10 − FedMF's"]
        expected = 100 * (ours["hr@10_of_11"].mean() - others["hr@10_of_11"].mean())
        assert found["mean"] == pytest.approx(expected)
        assert found["interval"][0] <= expected <= found["interval"][1]
    popularity = [tables[negatives]["Popularity"]["HR@10"] for negatives in tables]
    assert popularity[0] == popularity[1]


def test_what_is_there_is_not_done_again_and_other_rows_are_refused(asked, capsys):
    recommendation.run(asked)
    assert capsys.readouterr().out.count("done before") == 6
    with pytest.raises(UserError, match="'FedNCF' is no row of recommendation; these are: Popul"):
        recommendation.run(asked.replace(rows=["FedNCF"]))


def test_rows_differ_from_the_preset_by_options_that_there_are():
    for row in recommendation.ROWS:
        values = Reproduction("nowhere").values(TASK, row.preset, **row.values)
        method = TASK.method(TASK.options(**values))
        assert {*row.values} <= {*TASK.options.declarations()}
        assert row is recommendation.POPULARITY or method.name == values["algorithm"]

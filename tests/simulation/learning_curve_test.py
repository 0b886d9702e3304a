from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedpersonal.errors import UserError
from fedpersonal.simulation import learning_curve

_TRAINING = "training, while clients adapt"


@pytest.fixture(name="draw")
def _draw(tmp_path, monkeypatch):
    """Returns a function that draws a table and returns the figure and the picture's bytes."""

    def draw(table, **options):
        figures = []
        save = Figure.savefig
        monkeypatch.setattr(
            Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))
        )
        table.to_csv(tmp_path / "metrics.csv", index=False)
        learning_curve.plot_learning_curve(
            tmp_path / "metrics.csv", tmp_path / "curve.png", **options
        )
        return figures[-1], (tmp_path / "curve.png").read_bytes()

    return draw


def _table(rounds):
    table = pd.DataFrame({"round": np.arange(1, rounds + 1), "seconds": 0.5})
    table["train/loss"] = 1 / table["round"]
    table["train/rmse"] = 2 / table["round"]
    table["train/num_examples"] = 7
    table["eval/unseen/rmse"] = np.where(table["round"] % 5 == 0, 3 / table["round"], np.nan)
    return table


def _lines(ax):
    return {line.get_label(): line.get_xydata() for line in ax.get_lines()}


def test_one_panel_a_metric_with_named_curves(draw):
    figure, picture = draw(_table(10), title="a run")
    assert picture.startswith(b"\x89PNG")
    assert figure.get_suptitle() == "a run"
    rmse, loss = figure.axes
    assert (rmse.get_xlabel(), rmse.get_ylabel()) == ("round", "rmse")
    assert (loss.get_xlabel(), loss.get_ylabel()) == ("round", "loss")
    assert set(_lines(rmse)) == {_TRAINING, "evaluation, unseen"}
    rounds = np.arange(1, 11)
    np.testing.assert_allclose(_lines(loss)[_TRAINING], np.stack([rounds, 1 / rounds], 1))
    np.testing.assert_allclose(_lines(rmse)["evaluation, unseen"], [[5, 0.6], [10, 0.3]])


def test_long_training_curve_is_averaged(draw):
    table = _table(100)
    table["train/loss"] = np.where(table["round"] % 2 == 0, 1.0, 3.0)
    figure, _ = draw(table)
    averaged = _lines(figure.axes[1])[f"{_TRAINING} (mean of 4 rounds)"]
    np.testing.assert_allclose(averaged[10:90, 1], 2.0)


def test_draws_a_single_round(draw):
    figure, _ = draw(_table(1))
    assert [ax.get_ylabel() for ax in figure.axes] == ["loss", "rmse"]


def test_refuses_a_run_without_metrics(draw):
    with pytest.raises(UserError, match="metrics.csv has no metrics"):
        draw(_table(3)[["round", "seconds"]])


def test_first_rounds_do_not_flatten_the_rest(draw):
    table = _table(50)
    table["train/loss"] = np.where(table["round"] < 5, 100.0, 1 + table["round"] / 50)
    figure, _ = draw(table)
    low, high = figure.axes[1].get_ylim()
    assert 1.0 < low < 1.22 and 2.0 < high < 2.3

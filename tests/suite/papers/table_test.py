"""Result tables: means, deviations, differences, what is written; and their pictures."""

from __future__ import annotations

import csv
import json
import struct
import types

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import ClientMetric
from fedpersonal.suite.papers.picture import draw
from fedpersonal.suite.papers.table import Cell, Report, Table, difference, over_seeds

CELLS = {
    "ours": {"RMSE": Cell((1.0, 2.0, 6.0), 0.9), "MB": Cell((1234.5,))},
    "theirs": {"RMSE": Cell((2.5, 2.5, 2.5))},
    "formula": {"RMSE": Cell((4.0,), 5.0), "MB": Cell(("2|g|",))},
}


def rows_of(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "--" not in line]


def test_the_spread_is_over_seeds():
    cell = Cell((1.0, 2.0, 6.0))
    assert (cell.mean, cell.sd) == (3.0, pytest.approx(np.std([1, 2, 6], ddof=1)))
    assert Cell((0.5,)).sd is None and Cell((0.5,)).text(1) == "0.5"
    assert Cell((2.0,), None, 0.25).text(2) == "2.00 ± 0.25"


def test_a_run_of_another_version_is_named():
    job = types.SimpleNamespace(path="runs/old", summary={"test": {"guesses": {"a": {"auc": 0.7}}}})
    assert over_seeds([job], "test", "guesses", "a", "auc", scale=100).mean == 70.0
    with pytest.raises(UserError, match="runs/old: its summary has no 'b', since another version"):
        over_seeds([job], "test", "guesses", "b", "auc")


def test_published_figures_stand_beside_measured_ones():
    table = Table("t", CELLS, "About:", {"RMSE": 2, "MB": 0})
    assert table.markdown().startswith("About:\n\n|")
    assert rows_of(table.markdown()) == [
        ["", "RMSE, paper", "measured", "MB"],
        ["ours", "0.90", "3.00 ± 2.65", "1,234"],
        ["theirs", "–", "2.50 ± 0.00", "–"],
        ["formula", "5.00", "4.00", "2∣g∣"],
    ]
    brackets = Table("t", CELLS, published="brackets").markdown()
    assert [row[1] for row in rows_of(brackets)] == [
        "RMSE",
        "3.0 ± 2.6 (0.9)",
        "2.5 ± 0.0",
        "4.0 (5.0)",
    ]


def test_all_values_are_in_the_files(tmp_path):
    hidden = Table("points", {"ours": {0.5: Cell((7.0, 8.0, 9.0))}})
    report = Report("t1", [0, 1, 4], ["# Title", Table("main", CELLS)], [hidden], {"a": 1})
    page = report.write(tmp_path)
    assert (tmp_path / "t1.md").read_text() == page + "\n" and "7.0" not in page
    found = json.loads((tmp_path / "t1.json").read_text())
    assert (found["a"], found["seeds"], list(found["tables"])) == (1, [0, 1, 4], ["main", "points"])
    cell = found["tables"]["main"]["ours"]["RMSE"]
    assert (cell["values"], cell["mean"], cell["published"]) == ([1, 2, 6], 3, 0.9)
    with open(tmp_path / "t1.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(r["seed"], r["value"]) for r in rows if r["table"] == "points"] == [
        ("0", "7.0"),
        ("1", "8.0"),
        ("4", "9.0"),
    ]


RMSE = ClientMetric("rmse_after", to_mean=np.square, finalize=np.sqrt, scale=10.0)


def clients(names, counts, values):
    return pd.DataFrame({"client": [*names], "num_examples": counts, "rmse_after": values})


def test_the_difference_is_that_of_the_cells():
    ours = [clients(["a", "b"], [2, 6], [1.0, 2.0]), clients(["c", "b"], [1, 0], [3.0, np.nan])]
    others = [
        clients(["b", "a", "z"], [6, 2, 9], [1.5, 1.5, 9.0]),
        clients(["b", "c"], [0, 1], [9, 1]),
    ]
    found = difference(ours, others, RMSE)
    expected = [10 * (np.sqrt((2 * 1 + 6 * 4) / 8) - 1.5), 10 * (3.0 - 1.0)]
    assert found.values == pytest.approx(expected)
    assert found.sd == pytest.approx(np.std(expected, ddof=1))
    assert found.interval is None and "within noise" not in found.text(2)  # Three clients.
    many = [[clients("abcdefg", [2] * 7, m + np.arange(7))] for m in (1.0, 2.0)]
    low, high = difference(*many, RMSE).interval
    assert low <= difference(*many, RMSE).mean <= high < 0
    assert RMSE.overall(ours[0]) == pytest.approx(10 * np.sqrt(26 / 8))
    alike = ClientMetric("rmse_after", weights=None)
    assert difference(ours[:1], others[:1], alike).values == (pytest.approx(0.0),)


def test_a_row_that_differs_is_told_from_one_that_does_not():
    random = np.random.default_rng(0)
    names, counts = [f"u{n}" for n in range(300)], random.integers(1, 9, 300)
    common = 1 + random.random(300)
    table = clients(names, counts, common)
    noisy = clients(names, counts, common + random.normal(0, 0.01, 300))
    worse = clients(names, counts, common + 0.1)
    assert "within noise" in difference([noisy] * 2, [table] * 2, RMSE).text(2)
    low, high = difference([worse], [table], RMSE).interval
    assert 0.9 < low <= high < 1.1


def test_rows_on_other_examples_are_refused():
    ours = [clients(["a"], [2], [1.0])]
    for others in ([clients(["a"], [3], [1.0])], [clients(["b"], [2], [1.0])]):
        with pytest.raises(ValueError, match="rows of table 0 are not of the same examples"):
            difference(ours, others, RMSE)


@pytest.fixture(name="panels_of")
def _panels_of(tmp_path, monkeypatch):
    """Returns a function that draws tables and returns the panels."""
    figures, save = [], Figure.savefig

    def savefig(self, *args, **options):
        figures.append(self)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)

    def panels_of(*tables, **options):
        labels = {"title": "Curves", "x_label": "epoch", "y_label": "accuracy"}
        draw(tables, tmp_path / "made" / "curves.png", **{**labels, **options})
        return figures[-1].axes

    return panels_of


def curve(points, deviation=0.0):
    spread = {x: (y - deviation, y, y + deviation) for x, y in points.items()}
    return {x: Cell(values if deviation else values[:1]) for x, values in spread.items()}


def test_means_bands_and_baselines(panels_of, tmp_path):
    many = {x: 10.0 * x for x in range(1, 9)}
    table = Table("t", {"FL": curve(many, 1.0), "server": curve({1.0: 5.0, 2.5: 6.0})})
    (ax,) = panels_of(table, baselines=[("majority", 7.5)])
    federated, server, majority = ax.get_lines()[:3]
    assert federated.get_xydata().tolist() == [[x, y] for x, y in many.items()]
    assert server.get_xydata().tolist() == [[1, 5], [2.5, 6]]
    assert set(majority.get_ydata()) == {7.5} and majority.get_linestyle() == "--"
    (band,) = ax.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
    assert corners == {(x, y + side) for x, y in many.items() for side in (-1, 1)}
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FL", "server", "majority"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "accuracy")
    assert ax.figure.get_suptitle() == "Curves"
    head = (tmp_path / "made" / "curves.png").read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:])
    assert 900 < width < 1400 and 500 < height < 800


def test_few_points_have_bars_and_a_single_one_is_seen(panels_of):
    (ax,) = panels_of(Table("t", {"FL": curve({3: 4.0}, 0.5)}))
    assert ax.get_lines()[0].get_marker() == "o"
    (bar,) = ax.collections
    assert bar.get_segments()[0].tolist() == [[3, 3.5], [3, 4.5]]
    assert ax.get_xticks().tolist() == [3]


def test_named_columns_lie_beside_each_other_and_what_is_off_scale_below(panels_of):
    near, far = curve({"1": 3.0, "all": 2.0}), curve({"1": 300.0, "all": 200.0})
    tables = [Table(n, {"a": near, "b": near, "c": far}, n) for n in ("one", "two", "three")]
    *panels, spare = panels_of(*tables, off_scale=1.5)
    assert [ax.get_title("left") for ax in panels] == ["one", "two", "three"]
    assert not spare.get_visible()
    assert [bool(ax.get_ylabel()) for ax in panels] == [True, False, True]
    first, second = (line.get_xdata() for line in panels[0].get_lines())
    assert (second - first).tolist() == pytest.approx([0.03, 0.03])
    assert panels[0].get_xlabel() == "epoch\nnot plotted: c, 200 to 300"
    assert [text.get_text() for text in panels[0].get_xticklabels()] == ["1", "all"]


@pytest.mark.parametrize(
    ("cells", "baselines", "message"),
    [
        ({}, [], "0 lines and 0 baselines cannot be plotted"),
        ({f"{n}": curve({1: 2.0}) for n in range(25)}, [], "25 lines"),
        ({"a": curve({1: 2.0})}, [("b", 1)] * 5, "5 baselines"),
        ({"a": curve({1: np.nan})}, [], "t: the figures of a must be finite"),
    ],
)
def test_refuses(panels_of, tmp_path, cells, baselines, message):
    with pytest.raises(UserError, match=message):
        panels_of(Table("t", cells), baselines=baselines)
    assert not list(tmp_path.iterdir())

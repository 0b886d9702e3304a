"""Learning curves in one picture: what is drawn, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.papers.compared_curves import plot_curves
from fedpersonal.errors import UserError

POINTS = [(1, 10.0, 1.0), (2, 30.0, 2.0), (4, 40.0, 0.5)]
NAMES = {"title": "Curves", "x_label": "epoch", "y_label": "accuracy"}


@pytest.fixture(name="draw")
def _draw(tmp_path, monkeypatch):
    """Returns a function that draws curves and returns the panel."""
    figures = []
    save = Figure.savefig

    def savefig(self, *args, **options):
        figures.append(self)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)

    def draw(*curves, **options):
        plot_curves(curves, tmp_path / "curves.png", **NAMES, **options)
        (ax,) = figures[-1].axes
        return ax

    return draw


def test_means_bands_and_baselines(draw, tmp_path):
    exact = np.array([(1, 5.0, 0.0), (2, 6.0, 0.0)])
    ax = draw(("FL", POINTS), ("server", exact), baselines=[("majority", 7.5)])
    federated, server, majority = ax.get_lines()
    assert federated.get_xydata().tolist() == [[1, 10], [2, 30], [4, 40]]
    assert server.get_xydata().tolist() == [[1, 5], [2, 6]]
    assert set(majority.get_ydata()) == {7.5} and majority.get_linestyle() == "--"
    (band,) = ax.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
    assert corners == {(1, 9), (2, 28), (4, 39.5), (4, 40.5), (2, 32), (1, 11)}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["FL", "server", "majority"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "accuracy")
    assert ax.figure.get_suptitle() == "Curves"
    head = (tmp_path / "curves.png").read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:])
    assert 900 < width < 1400 and 500 < height < 800


def test_a_single_point_is_seen(draw):
    (line,) = draw(("FL", POINTS[:1])).get_lines()
    assert line.get_marker() == "o"


@pytest.mark.parametrize(
    ("curves", "options", "message"),
    [
        ([], {}, "no curve to draw"),
        ([("a", [])], {}, "a must have points of x, mean and deviation"),
        ([("a", [(1, 2)])], {}, r"a must have points .* got the shape \[1, 2\]"),
        ([("a", POINTS), ("b", [(1, np.nan, 0)])], {}, "b must be finite, row 0 is not"),
        ([("a", [(1, 2, -3)])], {}, "a must not have negative deviations, got -3"),
        ([("a", POINTS)] * 9, {}, "8 curves at most, got 9"),
        ([("a", POINTS)], {"baselines": [("b", 1)] * 5}, "4 baselines at most, got 5"),
    ],
)
def test_refuses(draw, tmp_path, curves, options, message):
    with pytest.raises(UserError, match=message):
        draw(*curves, **options)
    assert not list(tmp_path.iterdir())


def test_a_picture_that_fails_leaves_no_file(draw, tmp_path, monkeypatch):
    def fail(self, file, **options):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        draw(("a", POINTS))
    assert not list(tmp_path.iterdir())

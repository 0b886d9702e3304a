"""Maps of embeddings: what is drawn where in which color, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from experiments.papers.furl import embedding_map
from experiments.papers.furl.embedding_agreement import label_agreement
from experiments.papers.furl.embedding_map import plot_embeddings
from fedpersonal.errors import UserError
from fedpersonal.report.pictures import COLORS

LABELS = np.repeat([3, 0, 2, 1], [5, 4, 2, 1])
FIRST = np.random.default_rng(0).normal(size=[12, 2])


@pytest.fixture(name="draw")
def _draw(tmp_path, monkeypatch):
    """Returns a function that draws panels and returns the figure."""
    figures = []
    save = Figure.savefig

    def savefig(self, *args, **options):
        figures.append(self)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)

    def draw(*panels, **options):
        panels = [(*panel, "")[:3] for panel in panels]
        options.setdefault("label_names", "abcdefgh")
        plot_embeddings(panels, tmp_path / "made" / "map.png", title="Users", **options)
        return figures[-1]

    return draw


@pytest.fixture(name="as_it_is")
def _as_it_is(monkeypatch):
    """Stands in for t-SNE, which takes its time, and keeps embeddings as they are."""
    monkeypatch.setattr(embedding_map.TSNE, "fit_transform", lambda self, table: table.copy())


def _points(ax):
    """Where points are, and their colors, from the lowest to the topmost."""
    (points,) = ax.collections
    return points.get_offsets().data, [to_hex(color) for color in points.get_facecolors()]


def _keys(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_tells_clusters_apart(draw, tmp_path):
    labels = np.repeat(np.arange(3), 15)
    random = np.random.default_rng(0)
    embeddings = 10 * np.eye(3)[labels] + random.normal(size=[45, 3])
    figure = draw(("server", embeddings), ("FL", embeddings[:, ::-1]), labels=labels)
    assert figure.get_suptitle() == "Users"
    assert [ax.get_title() for ax in figure.axes] == ["server", "FL"]
    for ax in figure.axes:
        assert label_agreement(*_points(ax), k=10).measured == 1
        assert not ax.get_xticks().size and not ax.get_yticks().size
    head = (tmp_path / "made" / "map.png").read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:])
    assert 1200 < width < 1600 and 600 < height < 900


def test_the_most_frequent_labels_have_colors(draw, as_it_is):
    names = ["cfb", "nba", "news", "ask"]
    figure = draw(("", FIRST), labels=LABELS, label_names=names, highlight=2)
    assert _keys(figure) == ["ask", "cfb", "others"]
    places, colors = _points(figure.axes[0])
    # Others are beneath.
    assert set(colors[:3]) == {"#d4d7db"}
    assert sorted(colors[3:]) == sorted([COLORS[0]] * 5 + [COLORS[1]] * 4)
    for user, place in enumerate(FIRST - FIRST.mean(axis=0)):
        expected = COLORS[0] if user < 5 else COLORS[1] if user < 9 else "#d4d7db"
        (found,) = np.flatnonzero(np.isclose(places, place).all(axis=1))
        assert colors[found] == expected


def test_without_others(draw, as_it_is):
    assert _keys(draw(("", FIRST), labels=LABELS)) == ["d", "a", "c", "b"]


def test_values_have_a_color_bar(draw, as_it_is):
    values = np.linspace(0, 1, 12)
    figure = draw(("one", FIRST), ("other", FIRST), values=values, values_name="click rate")
    *panels, bar = figure.axes
    assert bar.get_ylabel() == "click rate"
    assert len(panels) == 2
    for ax in panels:
        places, colors = _points(ax)
        lowest = np.isclose(places, FIRST[0] - FIRST.mean(axis=0)).all(axis=1)
        assert [color for color, is_it in zip(colors, lowest) if is_it] == ["#440154"]
    assert draw(("", FIRST), values=np.ones(12)).axes


def test_maps_lie_alike(draw, as_it_is):
    """The second is the first one turned, mirrored and moved."""
    turned = FIRST @ [[0.0, 1.0], [1.0, 0.0]] @ [[0.8, 0.6], [-0.6, 0.8]] + 5
    figure = draw(("", FIRST), ("", turned), labels=LABELS)
    first, second = (_points(ax)[0] for ax in figure.axes)
    np.testing.assert_allclose(first, second, atol=1e-9)


def test_notes_stand_below_in_lines_that_fit(draw, as_it_is):
    figure = draw(("", FIRST, "short"), ("", FIRST, "word " * 20), labels=LABELS)
    short, long = (ax.get_xlabel().splitlines() for ax in figure.axes)
    assert short == ["short"]
    assert len(long) == 2
    renderer = FigureCanvasAgg(figure).get_renderer()
    for ax in figure.axes:
        note = ax.xaxis.label.get_window_extent(renderer)
        assert note.width < ax.get_window_extent(renderer).width


@pytest.mark.parametrize(
    ("panels", "options", "message"),
    [
        ([("a", FIRST), ("b", FIRST[1:])], {"labels": LABELS}, r"b must .* \[12, dimensions\]"),
        ([("a", FIRST[:3])], {"labels": LABELS[:3]}, "at least 4 users, there are 3"),
        ([("a", FIRST[:, :1])], {"labels": LABELS}, "a needs 2 dimensions or more"),
        ([("a", np.ones([12, 2]))], {"labels": LABELS}, "a needs .* users who differ"),
        ([("a", np.full([12, 2], np.nan))], {"labels": LABELS}, "a must be finite, row 0"),
        ([("a", FIRST)], {"labels": LABELS[1:]}, r"labels must have the shape \[12\]"),
        ([("a", FIRST)], {"values": np.full(12, np.inf)}, "values must be finite, row 0"),
    ],
)
def test_refuses(draw, as_it_is, tmp_path, panels, options, message):
    with pytest.raises(UserError, match=message):
        draw(*panels, **options)
    assert not list(tmp_path.iterdir())


def test_a_picture_that_fails_leaves_no_file(draw, as_it_is, tmp_path, monkeypatch):
    def fail(self, file, **options):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        draw(("", FIRST), labels=LABELS)
    assert not (tmp_path / "made").exists()

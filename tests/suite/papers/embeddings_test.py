"""Embeddings: their agreement by hand and over all shuffles, their maps, what is refused."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fedpersonal.errors import UserError
from fedpersonal.report.pictures import COLORS
from fedpersonal.suite.papers import embeddings as embedding_map
from fedpersonal.suite.papers.embeddings import (
    label_agreement,
    neighbour_agreement,
    plot_embeddings,
    value_agreement,
)

# On a line; the nearest to each are users 1, 0, 1 and 2.
LINE = np.array([[0.0], [1.0], [3.0], [7.0]])


@pytest.mark.parametrize(
    ("second", "k", "expected"),
    [
        # Nearest: 1, 2, 1, 2.
        ([0, 5, 6, 20], 1, 3 / 4),
        # Both 0 and 1, of user 2, against 1 and 3; else the same.
        ([0, 1, 10, 11], 2, 7 / 8),
        ([0, 1, 10, 11], 3, 1),
    ],
)
def test_shared_neighbours_by_hand(second, k, expected):
    agreement = neighbour_agreement(LINE, np.array(second)[:, np.newaxis], k=k)
    assert agreement.measured == pytest.approx(expected)
    assert agreement.chance == pytest.approx(k / 3)


def test_labels_by_hand():
    agreement = label_agreement(LINE, np.array([*"aabb"]), k=1)
    assert agreement.measured == pytest.approx(3 / 4)
    assert agreement.chance == pytest.approx(1 / 3)


def test_values_by_hand():
    """Neighbours have 2, 1, 2 and 3, of ranks 2.5, 1, 2.5 and 4."""
    agreement = value_agreement(LINE, np.array([1.0, 2.0, 3.0, 10.0]), k=1)
    assert agreement.measured == pytest.approx(3 / np.sqrt(5 * 4.5))
    assert agreement.chance == 0


def test_chance_is_the_mean_over_all_shuffles():
    second, labels = np.array([[0.0], [5.0], [6.0], [20.0]]), np.array([0, 1, 1, 1])
    shuffles = [list(order) for order in itertools.permutations(range(4))]
    neighbours = [neighbour_agreement(LINE, second[order], k=2) for order in shuffles]
    alike = [label_agreement(LINE, labels[order], k=2) for order in shuffles]
    for agreements in (neighbours, alike):
        mean = np.mean([agreement.measured for agreement in agreements])
        assert mean == pytest.approx(agreements[0].chance)


def test_how_an_embedding_lies_is_of_no_matter():
    random = np.random.default_rng(0)
    first = random.normal(size=[60, 5])
    turn, _ = np.linalg.qr(random.normal(size=[5, 5]))
    assert neighbour_agreement(first, 100 * first @ turn + 3, k=7).measured == 1
    stretched = neighbour_agreement(first, first * [1, 1, 1, 1, 100], k=7)
    assert stretched.chance < stretched.measured < 0.6


def test_users_who_are_all_alike_agree_by_chance_only():
    """Users of a label stand side by side; taking the first of a tie would find them alike."""
    same = np.ones([300, 2])
    labels = np.repeat(np.arange(3), 100)
    values = labels + np.linspace(0, 0.1, 300)
    for agreement in (
        neighbour_agreement(same, same, k=10),
        label_agreement(same, labels, k=10),
        value_agreement(same, values, k=10),
    ):
        assert agreement.measured == pytest.approx(agreement.chance, abs=0.15)


def test_values_that_are_all_equal_agree_with_nothing():
    assert np.isnan(value_agreement(LINE, np.full(4, 7.0), k=1).measured)


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
    return points.get_offsets().data, np.array([*map(to_hex, points.get_facecolors())])


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


def test_the_most_frequent_labels_have_colors(draw, as_it_is, monkeypatch):
    monkeypatch.setattr(embedding_map, "_HIGHLIGHTED", 2)
    names = ["cfb", "nba", "news", "ask"]
    figure = draw(("", FIRST), labels=LABELS, label_names=names)
    assert _keys(figure) == ["ask", "cfb", "others"]
    places, colors = _points(figure.axes[0])
    # Others are beneath.
    assert set(colors[:3]) == {"#d4d7db"}
    assert sorted(colors[3:]) == sorted([COLORS[0]] * 5 + [COLORS[1]] * 4)
    for user, place in enumerate(FIRST - FIRST.mean(axis=0)):
        expected = COLORS[0] if user < 5 else COLORS[1] if user < 9 else "#d4d7db"
        (found,) = np.flatnonzero(np.isclose(places, place).all(axis=1))
        assert colors[found] == expected


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


@pytest.mark.parametrize("table", [FIRST[:, :1], np.ones([12, 2])])
def test_maps_that_cannot_be_drawn_are_refused(draw, as_it_is, tmp_path, table):
    with pytest.raises(UserError, match="a needs 2 dimensions or more, and users who differ"):
        draw(("a", table), labels=LABELS)
    assert not list(tmp_path.iterdir())

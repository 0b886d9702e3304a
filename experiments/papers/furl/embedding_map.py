"""Embeddings of the same users as maps side by side: figures 4 and 5 of the FURL paper."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from scipy.linalg import orthogonal_procrustes
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from fedpersonal.data.checks import check_count
from fedpersonal.errors import UserError
from fedpersonal.evaluation.column_checks import (
    check_column,
    check_embeddings,
    check_numbers,
)
from fedpersonal.simulation.pictures import COLORS, write_picture, write_title

_PANEL_INCHES = 3.9
_KEY_INCHES = 1.5
_NOTE_WIDTH = 56
_OTHERS = "#d4d7db"
_FRAME = "#b9bec4"
# A few outliers would leave all other values one color.
_COLORED_PERCENTILES = (2, 98)
_MAX_PERPLEXITY = 30
# With fewer the perplexity, a third of a user's fellow users at most, would be less than 1.
_MIN_USERS = 4


class Panel(NamedTuple):
    """One map.

    Attributes:
        title: Stands above.
        embeddings: (num_users, dimensions) floats, of two dimensions at least.
        note: Stands below.
    """

    title: str
    embeddings: npt.ArrayLike
    note: str = ""


class _Coloring(NamedTuple):
    """How users are colored.

    Attributes:
        colors: float64 (num_users, 4): RGBA.
        is_beneath: bool (num_users,): whether a user may be hidden by the others.
        draw_key: Draws what the colors stand for, beside the panels.
    """

    colors: np.ndarray
    is_beneath: np.ndarray
    draw_key: Callable[[Figure], None]


def plot_embeddings(
    panels: Sequence[Panel],
    path: str | os.PathLike,
    *,
    title: str,
    labels: npt.ArrayLike | None = None,
    label_names: Sequence[str] | None = None,
    values: npt.ArrayLike | None = None,
    values_name: str = "value",
    highlight: int = 5,
    seed: int = 0,
) -> None:
    """Draws each embedding's t-SNE map, users colored by label or by value.

    How a map lies means nothing, so each is turned, or mirrored, to lie most like the first.

    Args:
        panels: The embeddings, of the same users in the same order; plain tuples will do.
        path: The PNG file to write; its folder is made.
        title: Stands above the panels.
        labels: (num_users,) of anything that can be sorted; with `label_names`, their indices.
        label_names: What the labels are called; None for the labels themselves.
        values: (num_users,) floats, in place of labels.
        values_name: Stands beside the color bar.
        highlight: How many labels, the most frequent, have a color; users of others are gray.
        seed: Seed of t-SNE, and of who is drawn above whom.

    Raises:
        UserError: If there are both labels and values or neither; if an embedding or a value is
            not finite; if users are fewer than 4, or not as many everywhere; if a label has no
            name; or if there are not so many colors.
    """
    panels = [Panel(*panel) for panel in panels]
    tables = _check_panels(panels)
    num_users = len(tables[0])
    if (labels is None) == (values is None):
        raise UserError("users are colored either by labels or by values: give one of them")
    if values is None:
        labels = check_column("labels", labels, num_users)
        coloring = _by_label(labels, label_names, highlight)
    else:
        coloring = _by_value(check_numbers("values", values, num_users), values_name)

    size = (_PANEL_INCHES * len(panels) + _KEY_INCHES, _PANEL_INCHES + 1.0)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, panel, places in zip(axes, panels, _maps(tables, seed)):
        _draw(ax, panel, places, coloring, seed)
    coloring.draw_key(figure)
    write_title(figure, title)
    write_picture(figure, path)


def _check_panels(panels: Sequence[Panel]) -> list[np.ndarray]:
    """Returns the panels' embeddings, once they are known to have maps."""
    if not panels:
        raise UserError("there is no embedding to draw")
    num_users = len(panels[0].embeddings)
    if num_users < _MIN_USERS:
        raise UserError(f"a map needs at least {_MIN_USERS} users, there are {num_users}")
    tables = []
    for panel in panels:
        table = check_embeddings(panel.title, panel.embeddings, num_users=num_users)
        if table.shape[1] < 2:
            raise UserError(f"{panel.title} must have at least 2 dimensions to be drawn, it has 1")
        if not np.ptp(table, axis=0).any():
            raise UserError(f"{panel.title} has the same embedding for all users")
        tables.append(table)
    return tables


def _by_label(labels: np.ndarray, names: Sequence[str] | None, highlight: int) -> _Coloring:
    highlight = check_count("highlight", highlight, minimum=1)
    if highlight > len(COLORS):
        raise UserError(f"highlight must be at most {len(COLORS)}, got {highlight}")
    distinct, indices, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if names is not None:
        if not np.isin(distinct, range(len(names))).all():
            raise UserError(f"labels must be in [0, {len(names)}), the indices of label_names")
        distinct = [names[int(label)] for label in distinct]
    frequent = np.argsort(-counts, kind="stable")[:highlight]
    palette = np.full(len(distinct), _OTHERS)
    palette[frequent] = COLORS[: len(frequent)]
    is_other = ~np.isin(indices, frequent)
    key = [(str(distinct[label]), palette[label]) for label in frequent]
    key += [("others", _OTHERS)] if is_other.any() else []

    def draw_key(figure: Figure) -> None:
        handles = [
            Line2D([], [], linestyle="", marker="o", markersize=7, color=color, label=name)
            for name, color in key
        ]
        figure.legend(handles=handles, loc="outside right center", frameon=False, handletextpad=0.2)

    return _Coloring(to_rgba_array(palette[indices]), is_other, draw_key)


def _by_value(values: np.ndarray, name: str) -> _Coloring:
    low, high = np.percentile(values, _COLORED_PERCENTILES)
    scale = ScalarMappable(Normalize(low, high), "viridis")

    def draw_key(figure: Figure) -> None:
        bar = figure.colorbar(scale, ax=figure.axes, extend="both", aspect=28, pad=0.02)
        bar.set_label(name)
        bar.outline.set_visible(False)

    return _Coloring(scale.to_rgba(values), np.zeros(len(values), bool), draw_key)


def _maps(tables: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """Returns where each map has its users, (num_users, 2), around the origin."""
    maps = []
    for table in tables:
        perplexity = min(_MAX_PERPLEXITY, (len(table) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed)
        # Its threads wait for each other busily: on a machine with other work they take many times
        # longer than one alone.
        with threadpool_limits(1, user_api="openmp"):
            places = tsne.fit_transform(table)
        places -= places.mean(axis=0)
        turn, _ = orthogonal_procrustes(places, maps[0] if maps else places)
        maps.append(places @ turn)
    return maps


def _draw(ax: Axes, panel: Panel, places: np.ndarray, coloring: _Coloring, seed: int) -> None:
    # Users often come in an order, in which the last ones would hide the others.
    order = np.random.default_rng(seed).permutation(len(places))
    order = order[np.argsort(~coloring.is_beneath[order], kind="stable")]
    size = np.clip(10_000 / len(places), 5, 30)
    ax.scatter(*places[order].T, c=coloring.colors[order], s=size, linewidths=0, alpha=0.85)
    ax.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim", box_aspect=1)
    ax.spines[:].set_color(_FRAME)
    ax.set_title(panel.title, fontsize=11)
    ax.set_xlabel(textwrap.fill(panel.note, _NOTE_WIDTH), fontsize=9, labelpad=6)

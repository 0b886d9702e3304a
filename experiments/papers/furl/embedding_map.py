"""Embeddings of the same users as maps side by side: figures 4 and 5 of the FURL paper."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.linalg import orthogonal_procrustes
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.evaluation.column_checks import check_column, check_embeddings, check_numbers
from fedpersonal.report.pictures import COLORS, write_picture, write_title

_PANEL_INCHES = 3.9
_KEY_INCHES = 1.5
_NOTE_WIDTH = 56
_OTHERS, _FRAME = "#d4d7db", "#b9bec4"
# A few outliers would leave all other values one color.
_COLORED_PERCENTILES = (2, 98)
_MAX_PERPLEXITY = 30
# With fewer the perplexity, a third of a user's fellow users at most, would be less than 1.
_MIN_USERS = 4


def plot_embeddings(
    panels: Sequence[tuple[str, npt.ArrayLike, str]],
    path: str | os.PathLike,
    *,
    title: str,
    labels: npt.ArrayLike = (),
    label_names: Sequence[str] = (),
    values: npt.ArrayLike | None = None,
    values_name: str = "value",
    highlight: int = 5,
    seed: int = 0,
) -> None:
    """Draws each embedding's t-SNE map, users colored by label or by value.

    How a map lies means nothing, so each is turned, or mirrored, to lie most like the first.

    Args:
        panels: For each a title, (num_users, dimensions) floats, of the same users in the same
            order, and a note that stands below.
        path: The PNG file to write; its folder is made.
        title: Stands above the panels.
        labels: (num_users,) indices of `label_names`.
        label_names: What the labels are called.
        values: (num_users,) floats, in place of labels.
        values_name: Stands beside the color bar.
        highlight: How many labels, the most frequent, have a color; users of others are gray.
        seed: Seed of t-SNE, and of who is drawn above whom.

    Raises:
        UserError: If an embedding or a value is not finite, or all are the same; if users are fewer
            than 4, or not as many everywhere.
    """
    num_users = len(np.asarray(panels[0][1]))
    if num_users < _MIN_USERS:
        raise UserError(f"a map needs at least {_MIN_USERS} users, there are {num_users}")
    tables = [check_embeddings(name, table, num_users=num_users) for name, table, _ in panels]
    for (name, *_), table in zip(panels, tables):
        if table.shape[1] < 2 or not np.ptp(table, axis=0).any():
            raise UserError(f"{name} needs 2 dimensions or more, and users who differ")
    size = (_PANEL_INCHES * len(panels) + _KEY_INCHES, _PANEL_INCHES + 1.0)
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    # Users often come in an order, in which the last ones would hide the others.
    order = generator(Purpose.MAP_ORDER, seed).permutation(num_users)
    if values is None:
        labels = check_column("labels", labels, num_users)
        colors, is_other = _color_by_label(figure, labels, label_names, highlight)
        order = order[np.argsort(~is_other[order], kind="stable")]
    else:
        values = check_numbers("values", values, num_users)
        scale = ScalarMappable(Normalize(*np.percentile(values, _COLORED_PERCENTILES)), "viridis")
        colors = scale.to_rgba(values)
        bar = figure.colorbar(scale, ax=axes, extend="both", aspect=28, pad=0.02)
        bar.set_label(values_name)
        bar.outline.set_visible(False)
    for ax, (name, _, note), places in zip(axes, panels, _maps(tables, seed)):
        dots = np.clip(10_000 / num_users, 5, 30)
        ax.scatter(*places[order].T, c=colors[order], s=dots, linewidths=0, alpha=0.85)
        ax.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim", box_aspect=1)
        ax.spines[:].set_color(_FRAME)
        ax.set_title(name, fontsize=11)
        ax.set_xlabel(textwrap.fill(note, _NOTE_WIDTH), fontsize=9, labelpad=6)
    write_title(figure, title)
    write_picture(figure, path)


def _color_by_label(
    figure: Figure, labels: np.ndarray, names: Sequence[str], highlight: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a key and returns users' colors, (num_users, 4), and who has none, (num_users,)."""
    distinct, indices, counts = np.unique(labels, return_inverse=True, return_counts=True)
    frequent = np.argsort(-counts, kind="stable")[:highlight]
    palette = np.full(len(distinct), _OTHERS)
    palette[frequent] = COLORS[: len(frequent)]
    is_other = ~np.isin(indices, frequent)
    key = [(str(names[distinct[label]]), palette[label]) for label in frequent]
    key += [("others", _OTHERS)] if is_other.any() else []
    marks = {"linestyle": "", "marker": "o", "markersize": 7}
    handles = [Line2D([], [], color=color, label=name, **marks) for name, color in key]
    figure.legend(handles=handles, loc="outside right center", frameon=False, handletextpad=0.2)
    return to_rgba_array(palette[indices]), is_other


def _maps(tables: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """Returns where each map has its users, (num_users, 2), around the origin."""
    maps: list[np.ndarray] = []
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

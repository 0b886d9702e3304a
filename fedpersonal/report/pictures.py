"""The colours of pages and pictures, and the learning curves of a run as a picture."""

from __future__ import annotations

import io
import itertools
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from fedpersonal.errors import UserError
from fedpersonal.files import atomic_write

if TYPE_CHECKING:  # Pages need no matplotlib; only functions that draw pictures import it.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinguishable from each other and from gray.
COLORS = tuple("#2f6db3 #d1602b #3a8f5c #8a5bb5 #b3862f #c2476b #2a9d9d #7a4b2a".split())

# Colours on a light and on a dark page. They also differ in brightness, for colour-blind readers.
ROLES = {
    "paper": ("#ffffff", "#16181d"),
    "panel": ("#f6f7f9", "#1f232b"),
    "ink": ("#1b1f24", "#e8eaed"),
    "quiet": ("#5b6470", "#a3acb8"),
    "grid": ("#dde1e6", "#343a44"),
    "training": ("#8c8478", "#a39a8c"),
    "before": ("#8a93a0", "#8b95a3"),
    "after": ("#2f6db3", "#6fa8e8"),
    "worse": ("#b3261e", "#ff8a80"),
    "device": ("#3a8f5c", "#66c48c"),
    "wire": ("#b3862f", "#e0b35c"),
    "server": ("#2f6db3", "#6fa8e8"),
    "focus": ("#a2008a", "#ff9cf0"),
}

# Colours of series of curves, in this order; on a dark page they are lighter.
_DARK_SERIES = "#6fa8e8 #f0925c #6cc793 #b998e0 #dcb45c #ee82a4 #5fd0d0 #c08f6a".split()
# Pages compare up to ten methods, so they have two more colours than pictures.
SERIES = (
    *zip(COLORS, _DARK_SERIES),
    ("#4d4d4d", "#bdbdbd"),
    ("#8c9a1e", "#c6d45a"),
)

# The series of well-known methods; other methods get the remaining series.
_METHODS = {
    **{"fed_recon": 0, "fed_avg": 1, "furl": 2, "fedperc": 3, "fed_avg_finetuning": 4},
    **{"fed_per": 5, "ditto": 6, "pfedrec": 7, "centralized": 8, "local_only": 9},
}

_PANELS_A_ROW = 3
# Inches: left of, right of, below and above all panels, and between two panels.
_MARGINS = (0.75, 0.15, 0.55, 0.5, 0.75)
# Training metrics are measured on each batch before its step, so clients adapt in between.
_SOURCES = {"train": "training, while clients adapt", "eval": "evaluation"}
# Curves of at most this many rounds have markers; longer training curves are smoothed by a moving
# average.
_FEW_ROUNDS = 30
_WINDOWS_A_RUN = 25
# Rules that exclude the first rounds from a panel's limits: the share of first rounds; the factor
# by which the spread of all rounds must exceed that of the later ones; and the margin around the
# later ones. The last rule that applies wins; the first rule is for long runs.
_STARTS = ((0.05, 0, 0.05), (0.2, 3, 0.15))


def series_of(methods: Sequence[str]) -> list[int]:
    """Returns the index in `SERIES` of each method.

    A well-known method gets its usual series, but only once; all others get the remaining ones.
    """
    usual = [_METHODS.get(method) for method in methods]
    is_first = [series not in usual[:place] for place, series in enumerate(usual)]
    free = [place for place in range(len(SERIES)) if place not in usual] or [*range(len(SERIES))]
    remaining = itertools.cycle(free)
    return [
        next(remaining) if series is None or not first else series
        for series, first in zip(usual, is_first)
    ]


def css_variables(*, dark: bool) -> str:
    """Returns the colours as CSS declarations: `--after: #2f6db3; ... --series-0: ...`."""
    named = {**ROLES, **{f"series-{i}": pair for i, pair in enumerate(SERIES)}}
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in named.items())


def tidy_axes(ax: Axes) -> None:
    """Draws a faint grid below the curves of a panel and frames the panel on two sides only."""
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def write_title(figure: Figure, title: str) -> None:
    """Writes a title above all panels, aligned left."""
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")


def write_picture(figure: Figure, path: str | os.PathLike) -> None:
    """Writes a PNG file atomically; creates its folder."""
    picture = io.BytesIO()  # matplotlib reports a full disk by an error number alone.
    figure.savefig(picture, format="png", dpi=150)
    with atomic_write(path, "wb") as file:
        file.write(picture.getvalue())


def plot_learning_curve(
    metrics_csv: str | os.PathLike, picture: str | os.PathLike, *, title: str = ""
) -> None:
    """Draws the metrics of a run, one panel for each.

    A column 'train/loss' or 'eval/unseen/loss' belongs to the panel of its last part, loss.
    Counts (last part 'num_...') are left out.

    Args:
        metrics_csv: The metrics of the run.
        picture: The PNG file to write.
        title: Title above the panels.

    Raises:
        UserError: If there is nothing to draw.
    """
    from matplotlib.figure import Figure

    table = pd.read_csv(metrics_csv, index_col="round")
    panels = _panels(table)
    if not panels:
        raise UserError(f"{metrics_csv} has no metrics to draw.")
    rows = math.ceil(len(panels) / _PANELS_A_ROW)
    columns = math.ceil(len(panels) / rows)
    width, height = 4.6 * columns, 3.3 * rows + 0.4
    figure = Figure(figsize=(width, height))
    # Fixed margins: computing them in Matplotlib takes as long as drawing.
    left, right, bottom, top, between = _MARGINS
    axes = figure.subplots(
        *(rows, columns),
        squeeze=False,
        gridspec_kw={
            **{"left": left / width, "right": 1 - right / width},
            **{"bottom": bottom / height, "top": 1 - top / height},
            "wspace": between * columns / (width - left - right - between * (columns - 1)),
            "hspace": between * rows / (height - bottom - top - between * (rows - 1)),
        },
    ).flatten()
    for ax, (metric, names) in zip(axes, panels.items()):
        _draw_panel(ax, metric, table[names])
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    if title:
        write_title(figure, title)
    write_picture(figure, picture)


def _panels(table: pd.DataFrame) -> dict[str, list[str]]:
    """Returns the columns of each panel; panels of evaluated metrics come first."""
    panels: dict[str, list[str]] = {}
    for source in ("eval", "train"):
        for name in table.columns[table.notna().any()]:
            metric = name.rpartition("/")[2]
            if name.startswith(f"{source}/") and not metric.startswith("num_"):
                panels.setdefault(metric, []).append(name)
    return {
        metric: sorted(names, key=lambda name: not name.startswith("train/"))
        for metric, names in panels.items()
    }


def _draw_panel(ax: Axes, metric: str, table: pd.DataFrame) -> None:
    from matplotlib.ticker import MaxNLocator

    evaluated = iter(COLORS * len(table.columns))
    for name in table.columns:
        color = ROLES["training"][0] if name.startswith("train/") else next(evaluated)
        _draw_curve(ax, table[name].dropna(), color)
    ax.set_xlabel("round")
    ax.set_ylabel(metric.replace("_", " "))
    ax.set_xlim(0, table.index.max() * 1.02)
    _exclude_start_from_limits(ax, table)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    tidy_axes(ax)
    ax.tick_params(labelsize=9, colors="#555555")
    ax.legend(frameon=False, fontsize=9)


def _exclude_start_from_limits(ax: Axes, table: pd.DataFrame) -> None:
    """Excludes the first rounds from the panel's limits if they would flatten the later ones."""
    spread = table.max().max() - table.min().min()
    for start, factor, margin in _STARTS if len(table) > _FEW_ROUNDS else _STARTS[1:]:
        later = table[table.index > start * table.index.max()]
        low, high = later.min().min(), later.max().max()
        if high > low and spread > factor * (high - low):
            ax.set_ylim(low - margin * (high - low), high + margin * (high - low))


def _draw_curve(ax: Axes, curve: pd.Series, color: str) -> None:
    source, *details = curve.name.split("/")[:-1]
    label = ", ".join([_SOURCES[source], *details]).replace("_", " ")
    if curve.name.startswith("train/") and len(curve) > _FEW_ROUNDS:
        window = max(3, len(curve) // _WINDOWS_A_RUN)
        ax.plot(curve.index, curve, color=color, linewidth=0.6, alpha=0.3)
        curve = curve.rolling(window, center=True, min_periods=1).mean()
        label += f" (mean of {window} rounds)"
    marker = "o" if len(curve) <= _FEW_ROUNDS else ""
    ax.plot(
        curve.index, curve, color=color, linewidth=1.8, marker=marker, markersize=4, label=label
    )

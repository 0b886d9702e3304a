"""The metrics of a run over its rounds, as a picture."""

from __future__ import annotations

import math
import os

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpersonal.errors import UserError
from fedpersonal.simulation.palette import COLORS, ROLES
from fedpersonal.simulation.pictures import tidy_axes, write_picture, write_title

_PANELS_A_ROW = 3
# Training metrics are taken batch by batch, each before its step: clients adapt meanwhile.
_SOURCES = {"train": "training, while clients adapt", "eval": "evaluation"}
_GRAY = "#555555"
# So many points are marked; a training curve of more is drawn as its moving average.
_FEW_ROUNDS = 30
_WINDOWS_A_RUN = 25
# The first rounds, as a share of a run; more than how many times the spread of the rest makes them
# leave the panel; and the margin that the rest then has. The last that applies counts; the first is
# for long runs.
_STARTS = ((0.05, 0, 0.05), (0.2, 3, 0.15))


def plot_learning_curve(
    metrics_csv: str | os.PathLike, picture: str | os.PathLike, *, title: str = ""
) -> None:
    """Draws the metrics of a run, one panel for each.

    A column 'train/loss' or 'eval/unseen/loss' belongs to the panel of its last part, loss.
    Counts (last part 'num_...') are left out.

    Args:
        metrics_csv: The metrics of the run.
        picture: The PNG file to write.
        title: Stands above the panels.

    Raises:
        UserError: There is nothing to draw.
    """
    table = pd.read_csv(metrics_csv, index_col="round")
    panels = _panels(table)
    if not panels:
        raise UserError(f"{metrics_csv} has no metrics to draw.")
    rows = math.ceil(len(panels) / _PANELS_A_ROW)
    columns = math.ceil(len(panels) / rows)
    figure = Figure(figsize=(4.6 * columns, 3.3 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for ax, (metric, names) in zip(axes, panels.items()):
        _draw_panel(ax, metric, table[names])
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    if title:
        write_title(figure, title)
    write_picture(figure, picture)


def _panels(table: pd.DataFrame) -> dict[str, list[str]]:
    """Returns the columns of each panel, those of evaluated metrics first."""
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
    evaluated = iter(COLORS * len(table.columns))
    for name in table.columns:
        color = ROLES["training"][0] if name.startswith("train/") else next(evaluated)
        _draw_curve(ax, table[name].dropna(), color)
    ax.set_xlabel("round")
    ax.set_ylabel(metric.replace("_", " "))
    ax.set_xlim(0, table.index.max() * 1.02)
    _look_past_the_start(ax, table)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    tidy_axes(ax)
    ax.tick_params(labelsize=9, colors=_GRAY)
    ax.legend(frameon=False, fontsize=9)


def _look_past_the_start(ax: Axes, table: pd.DataFrame) -> None:
    """Lets the first rounds leave the panel where they would flatten all that follows."""
    spread = table.max().max() - table.min().min()
    for start, much, margin in _STARTS if len(table) > _FEW_ROUNDS else _STARTS[1:]:
        later = table[table.index > start * table.index.max()]
        low, high = later.min().min(), later.max().max()
        if high > low and spread > much * (high - low):
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

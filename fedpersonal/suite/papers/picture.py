"""Draws tables as a picture: one panel per table, one line per row, deviations over seeds."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpersonal.errors import UserError
from fedpersonal.report.pictures import COLORS, tidy_axes, write_picture, write_title
from fedpersonal.suite.papers.table import Table

# Most points of a line with markers, and of a line with a bar for each deviation.
_FEW_POINTS, _FEWER_POINTS = 30, 6
_STYLES = ("-", "--", "-.")
_DASHES = ("--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)))
# Offset between two rows' markers if columns are no numbers, as a share of a column's width.
_OFFSET = 0.03
_PANEL_INCHES = (4.3, 3.5)
_KEY_INCHES = 2.3


def draw(
    tables: Sequence[Table],
    path: str | os.PathLike,
    *,
    title: str,
    x_label: str | Sequence[str],
    y_label: str,
    baselines: Sequence[tuple[str, float]] = (),
    off_scale: float | None = None,
    share_y: bool = False,
) -> None:
    """Draws the panels of tables, two in a row; the x axis has the columns.

    Args:
        tables: The tables; the caption of each is the title of its panel.
        path: The PNG file to write; its folder is created.
        title: Title above all panels.
        x_label: Label of the horizontal axes, or a label for each of them.
        y_label: Label of the vertical axis.
        baselines: Names and heights of dashed horizontal lines.
        off_scale: A row whose figures all exceed the least figure by this factor is named below its
            panel instead of plotted, since it would compress the other lines.
        share_y: Whether panels have the same scale.

    Raises:
        UserError: If there is nothing to draw, a figure is not finite, or there are too many lines.
    """
    names = list(dict.fromkeys(row for table in tables for row in table.cells))
    if not 0 < len(names) <= len(COLORS) * len(_STYLES) or len(baselines) > len(_DASHES):
        raise UserError(f"{len(names)} lines and {len(baselines)} baselines cannot be plotted")
    wide, high = min(2, len(tables)), -(-len(tables) // 2)
    width, height = _PANEL_INCHES
    size = (width * (wide if wide > 1 else 1.3) + _KEY_INCHES, height * high + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(high, wide, squeeze=False, sharey=share_y).ravel()
    handles: dict[str, object] = {}
    labels = [x_label] * len(tables) if isinstance(x_label, str) else x_label
    for number, (ax, table, label) in enumerate(zip(axes, tables, labels)):
        notes = _draw_rows(ax, table, names, off_scale, handles)
        for dashes, (name, value) in zip(_DASHES, baselines):
            handles[name] = ax.axhline(value, color="#555555", linewidth=1.2, linestyle=dashes)
        ax.set_xlabel("\n".join([label, *notes]), fontsize=9)
        ax.set_ylabel("" if number % wide else y_label)
        ax.set_title(table.caption.rstrip(":") if len(tables) > 1 else "", fontsize=10, loc="left")
        tidy_axes(ax)
    for ax in axes[len(tables) :]:
        ax.set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    write_title(figure, title)
    write_picture(figure, path)


def _draw_rows(
    ax: Axes,
    table: Table,
    names: Sequence[str],
    off_scale: float | None,
    handles: dict[str, object],
) -> list[str]:
    """Draws a panel, adds its lines to the legend's handles, and returns notes on rows left out."""
    columns, notes = table.columns, []
    is_named = any(isinstance(column, str) for column in columns)
    least = min(cell.mean for row in table.cells.values() for cell in row.values())
    for place, name in enumerate(names):
        row = table.cells.get(name, {})
        offset = _OFFSET * (place - (len(names) - 1) / 2)
        x = np.array([columns.index(c) + offset if is_named else c for c in row], np.float64)
        mean = np.array([cell.mean for cell in row.values()], np.float64)
        deviation = np.array([cell.sd or 0.0 for cell in row.values()], np.float64)
        if not np.isfinite([mean, deviation]).all():
            raise UserError(f"{table.name}: the figures of {name} must be finite to be plotted")
        if off_scale and len(row) and mean.min() > off_scale * least:
            notes.append(f"not plotted: {name}, {mean.min():,.0f} to {mean.max():,.0f}")
        elif len(row):
            style, color = divmod(place, len(COLORS))
            look = {"color": COLORS[color], "linestyle": _STYLES[style], "linewidth": 1.8}
            if len(x) <= _FEW_POINTS:
                look.update(marker="o", markersize=3.5)
            has_bars = deviation.any() and len(x) <= _FEWER_POINTS
            bars = deviation if has_bars else None
            handles[name] = ax.errorbar(x, mean, bars, capsize=2.5, elinewidth=1.0, **look)
            if deviation.any() and not has_bars:
                band = (mean - deviation, mean + deviation)
                ax.fill_between(x, *band, color=COLORS[color], alpha=0.15, linewidth=0)
    if is_named:
        ax.set_xticks(range(len(columns)), columns)
    elif all(isinstance(column, int) for column in columns):
        ax.set_xticks(columns)
    return notes

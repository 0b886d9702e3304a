"""Learning curves of several configurations in one picture."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpersonal.errors import UserError
from fedpersonal.evaluation.column_checks import check_finite
from fedpersonal.simulation.pictures import COLORS, tidy_axes, write_picture, write_title

# Curves of so many points at most have them marked.
_FEW_POINTS = 30
_GRAY = "#555555"
_DASHES = ("--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)))


def plot_curves(
    curves: Sequence[tuple[str, npt.ArrayLike]],
    path: str | os.PathLike,
    *,
    title: str,
    x_label: str,
    y_label: str,
    baselines: Sequence[tuple[str, float]] = (),
) -> None:
    """Draws curves of means in bands of a standard deviation to either side.

    Args:
        curves: For each its name and its points, (num_points, 3) floats: x, such as the round,
            ascending; mean; and standard deviation. Where all deviations are 0 there is no band.
        path: The PNG file to write; its folder is made.
        title: Stands above.
        x_label: Names the horizontal axis.
        y_label: Names the vertical axis.
        baselines: Names and heights of dashed horizontal lines.

    Raises:
        UserError: If there is no curve, or more than there are colors or dashes for; or if points
            do not have that shape, are not finite or have a negative deviation.
    """
    for what, given, most in (("curves", curves, COLORS), ("baselines", baselines, _DASHES)):
        if len(given) > len(most):
            raise UserError(f"there can be {len(most)} {what} at most, got {len(given)}")
    if not curves:
        raise UserError("there is no curve to draw")
    tables = [_check_points(name, points) for name, points in curves]

    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    ax = figure.subplots()
    for color, (name, _), (x, mean, deviation) in zip(COLORS, curves, tables):
        marker = {"marker": "o", "markersize": 3.5} if len(x) <= _FEW_POINTS else {}
        ax.plot(x, mean, color=color, linewidth=1.8, label=name, **marker)
        if deviation.any():
            band = (mean - deviation, mean + deviation)
            ax.fill_between(x, *band, color=color, alpha=0.15, linewidth=0)
    for dashes, (name, value) in zip(_DASHES, baselines):
        ax.axhline(value, color=_GRAY, linewidth=1.2, linestyle=dashes, zorder=1.5, label=name)
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    tidy_axes(ax)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    write_title(figure, title)
    write_picture(figure, path)


def _check_points(name: str, points: npt.ArrayLike) -> np.ndarray:
    """Returns x, means and deviations, float64 (3, num_points)."""
    points = np.asarray(points, np.float64)
    if points.ndim != 2 or points.shape[1] != 3 or not len(points):
        raise UserError(
            f"{name} must have points of x, mean and deviation, got the shape {list(points.shape)}"
        )
    check_finite(name, points)
    if (points[:, 2] < 0).any():
        raise UserError(f"{name} must not have negative deviations, got {points[:, 2].min():g}")
    return points.T

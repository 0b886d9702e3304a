"""What pictures have in common."""

from __future__ import annotations

import io
import os

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpersonal.files import atomic_write


def tidy_axes(ax: Axes) -> None:
    """Lays a faint grid beneath a panel of curves and frames it on two sides only."""
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def write_title(figure: Figure, title: str) -> None:
    """Writes a title above all panels, flush left."""
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")


def write_picture(figure: Figure, path: str | os.PathLike) -> None:
    """Writes a PNG file, whole or not at all; its folder is made."""
    picture = io.BytesIO()  # The library that draws says of a full disk no more than a number.
    figure.savefig(picture, format="png", dpi=150)
    with atomic_write(path, "wb") as file:
        file.write(picture.getvalue())

"""A picture of perplexity by how many samples a user gives (of FedPerC's Tables 1 and 2)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from fedpersonal.simulation.pictures import COLORS, tidy_axes, write_picture, write_title

# Perplexities so far apart are drawn on a logarithmic axis.
_FAR_APART = 4.0


def plot_by_samples(
    panels: Sequence[tuple[str, Sequence[Mapping[str, Any]]]],
    path: str | os.PathLike,
    *,
    title: str,
    titles: Mapping[str, str],
) -> None:
    """Draws panels, two beside each other, a line a method with its deviation over seeds.

    Args:
        panels: For each its title and rows with `method`, `samples`, `perplexity` and
            `perplexity_sd`, as of `results.perplexities`.
        path: The PNG file to write; its folder is made.
        title: Stands above.
        titles: Method to its name in the legend; a method that is not in it is not drawn.
    """
    num_rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(10.4, 0.7 + 3.3 * num_rows), layout="constrained")
    axes = figure.subplots(num_rows, 2, squeeze=False).ravel()
    for ax, (panel, rows) in zip(axes, panels):
        for color, (method, name) in zip(COLORS, titles.items()):
            own = [row for row in rows if row["method"] == method]
            deviations = [row["perplexity_sd"] or 0.0 for row in own]
            ax.errorbar(
                range(len(own)),
                [row["perplexity"] for row in own],
                yerr=deviations if any(deviations) else None,
                color=color,
                linewidth=1.6,
                marker="o",
                markersize=4,
                capsize=2.5,
                label=name,
            )
        samples = list(dict.fromkeys(row["samples"] for row in rows))
        ax.set_xticks(range(len(samples)), samples)
        ax.set_xlabel("utterances that a user gives")
        ax.set_title(panel, fontsize=10, loc="left")
        values = [row["perplexity"] for row in rows]
        if max(values) > _FAR_APART * min(values):
            ax.set_yscale("log")
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(ScalarFormatter())
            ax.yaxis.set_minor_formatter(NullFormatter())
        tidy_axes(ax)
    for ax in axes[::2]:
        ax.set_ylabel("perplexity")
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    axes[min(1, len(panels) - 1)].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    write_title(figure, title)
    write_picture(figure, path)

"""A picture of perplexity by how many samples a user gives (of FedPerC's Tables 1 and 2)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from fedpersonal.simulation.pictures import COLORS, tidy_axes, write_picture, write_title

# A method that is so many times as perplexed as the best one is named below instead of drawn: the
# lines of the others would lie on each other.
_OFF_SCALE = 1.5
# Between two methods' marks, of the distance of two numbers of samples.
_BESIDE = 0.03


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
    drawn = {}
    for ax, (panel, rows) in zip(axes, panels):
        best = min(row["perplexity"] for row in rows)
        off_scale = []
        for place, (color, (method, name)) in enumerate(zip(COLORS, titles.items())):
            own = [row for row in rows if row["method"] == method]
            values = [row["perplexity"] for row in own]
            deviations = [row["perplexity_sd"] or 0.0 for row in own]
            if min(values, default=best) > _OFF_SCALE * best:
                off_scale.append(f"not drawn: {name}, {min(values):,.0f} to {max(values):,.0f}")
                continue
            shift = _BESIDE * (place - (len(titles) - 1) / 2)
            drawn[name] = ax.errorbar(
                [number + shift for number in range(len(own))],
                values,
                yerr=deviations if any(deviations) else None,
                color=color,
                linewidth=1.6,
                marker="o",
                markersize=4,
                capsize=2.5,
            )
        samples = list(dict.fromkeys(row["samples"] for row in rows))
        ax.set_xticks(range(len(samples)), samples)
        ax.set_xlabel("\n".join(["utterances that a user gives", *off_scale]), fontsize=9)
        ax.set_title(panel, fontsize=10, loc="left")
        tidy_axes(ax)
    for ax in axes[::2]:
        ax.set_ylabel("perplexity")
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    figure.legend(drawn.values(), drawn.keys(), loc="outside right upper", frameon=False)
    write_title(figure, title)
    write_picture(figure, path)

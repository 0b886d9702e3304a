"""Metrics over rounds, seconds and bytes, as few points as a screen shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.evaluation.direction import lower_is_better, main_metric
from fedpersonal.report.numbers import label, rounded
from fedpersonal.report.run_data import RunData

MOST_POINTS = 400
_SOURCES = {"train": "training, while clients adapt", "eval": "validation"}


def curve_panels(run: RunData) -> dict[str, Any]:
    """Returns what `curves.js` draws of a run.

    Returns:
        `panels`, the main metric first, each with `label`, `lower` (whether less is better, or
        None) and `series`, each with `name`, `color` (a CSS variable) and, of as many numbers each,
        `round`, `seconds` and `bytes` (where known) and `y`.
    """
    rows = run.rounds
    x = {"round": rows["round"].to_numpy(np.float64)}
    x["seconds"] = np.nancumsum(rows["seconds"].to_numpy(np.float64))
    if run.bytes_per_round:
        x["bytes"] = x["round"] * run.bytes_per_round
    metrics: dict[str, list[dict[str, Any]]] = {}
    for name in sorted(run.round_metrics, key=lambda n: n.startswith("eval/")):
        source, *details, metric = name.split("/")
        y = rows[name].to_numpy(np.float64)
        chosen = thin(y)
        evaluated = sum(one["color"] != "training" for one in metrics.get(metric, []))
        words = [_SOURCES[source], *details]
        metrics.setdefault(metric, []).append(
            {
                "name": ", ".join(words).replace("_", " "),
                "color": "training" if source == "train" else f"series-{evaluated}",
                **{axis: rounded(values[chosen], 6) for axis, values in x.items()},
                "y": rounded(y[chosen]),
            }
        )
    return {"panels": panels(metrics, first=run.main_metric)}


def panels(
    series: Mapping[str, list[dict[str, Any]]], *, first: str | None = None
) -> list[dict[str, Any]]:
    """Returns panels of series by metric, that metric, or the main one, first."""
    first = first if first in series else main_metric(list(series))
    return [
        {"label": label(metric), "lower": lower_is_better(metric), "series": series[metric]}
        for metric in sorted(series, key=lambda name: (name != first, name != "loss"))
    ]


def thin(y: Sequence[float] | np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Returns which points of a curve to draw: real ones, with all that stands out.

    Args:
        y: (n,) floats; those that are not finite are left out.
        most: About so many are returned: of each stretch the least, the greatest and the last.
    """
    y = np.asarray(y, np.float64)
    known = np.flatnonzero(np.isfinite(y))
    if len(known) <= most:
        return known
    kept = {int(known[0])}
    for part in np.array_split(known, most // 3):
        kept.update(int(i) for i in (part[y[part].argmin()], part[y[part].argmax()], part[-1]))
    return np.array(sorted(kept))

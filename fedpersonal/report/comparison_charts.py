"""What the page of a comparison draws: curves with bands, clients as dots, metrics by bytes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.evaluation.direction import lower_is_better
from fedpersonal.report.comparison import Comparison, client_means
from fedpersonal.report.charts import thin
from fedpersonal.report.numbers import label, rounded, shown
from fedpersonal.report.run_data import RunData
from fedpersonal.report.pictures import series_of

# So many numbers of clients at most; further metrics are in the table alone.
_MOST_VALUES = 120_000
# So many points of all curves of a panel, and so many of each.
_MOST_POINTS, _FEWEST_POINTS = 2_400, 90
# Beside colours, for who cannot tell them apart.
_DASHES = (None, "8 3", "2 3", "9 3 2 3")
_SOURCES = {"eval": "validation", "train": "training"}


def colors_of(comparison: Comparison) -> dict[str, str]:
    """Returns the CSS variable of each method's colour, by the method's name."""
    methods = comparison.methods
    series = series_of([method.first.data.algorithm for method in methods])
    return {method.name: f"series-{place}" for method, place in zip(methods, series)}


def curve_bands(comparison: Comparison) -> list[dict[str, Any]]:
    """Returns panels as of `curve_panels`, a series a method; those of validation come first.

    A series is the mean over seeds in each round that all of them have; `low` and `high` are a
    standard deviation below and above it, where there are several seeds.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    methods, colors = comparison.methods, colors_of(comparison)
    for place, method in enumerate(methods):
        runs = [run.data for run in method.runs.values()]
        look = {"color": colors[method.name], "dash": _DASHES[place % len(_DASHES)]}
        for name in runs[0].round_metrics:
            if all(name in run.round_metrics for run in runs):
                most = max(_FEWEST_POINTS, _MOST_POINTS // len(methods))
                series = {"name": method.name, **look, **_band(runs, name, most)}
                found.setdefault(name, []).append(series)
    panels = []
    ranks = {metric: rank for rank, metric in enumerate(comparison.metrics)}

    def place_of(name: str) -> tuple[bool, int]:
        return name.startswith("train/"), ranks.get(name.rpartition("/")[2], len(ranks))

    for name in sorted(found, key=place_of):
        source, *details, metric = name.split("/")
        words = " ".join([_SOURCES[source], *details]).replace("_", " ")
        told = {"label": f"{label(metric)}, {words}", "lower": lower_is_better(metric)}
        panels.append({**told, "series": found[name]})
    return panels


def _band(runs: Sequence[RunData], name: str, most: int) -> dict[str, Any]:
    """Returns the mean of a curve over runs, with a band around it and three axes below it."""
    tables = [run.rounds.set_index("round") for run in runs]
    y = pd.concat([table[name] for table in tables], axis=1, join="inner")
    seconds = pd.concat([table["seconds"].fillna(0).cumsum() for table in tables], axis=1)
    mean, deviation = y.mean(axis=1, skipna=False), y.std(axis=1, ddof=1)
    rounds = mean.index[thin(mean.to_numpy(), most)]
    series: dict[str, Any] = {
        "round": rounded(rounds, 6),
        "seconds": rounded(seconds.mean(axis=1)[rounds], 5),
        "y": rounded(mean[rounds]),
    }
    sizes = [run.bytes_per_round for run in runs if run.bytes_per_round]
    if len(sizes) == len(runs):
        series["bytes"] = rounded(np.asarray(rounds) * statistics.mean(sizes), 6)
    if len(runs) > 1:
        series["low"], series["high"] = (
            rounded((mean + sign * deviation)[rounds]) for sign in (-1, 1)
        )
    return series


def client_dots(comparison: Comparison, *, show_clients: bool) -> dict[str, Any] | None:
    """Returns what `dots.js` draws: each client by the baseline against by another method.

    Args:
        comparison: The comparison.
        show_clients: Whether clients have their names; else their rank by what the first method
            but the baseline gains them.
    """
    if not comparison.differences:
        return None
    colors = colors_of(comparison)
    baseline, *others = comparison.methods
    examples = pd.concat([run.tested for run in baseline.paired]).groupby(level=0).mean()
    main = comparison.differences[others[0].name][comparison.metric]
    gains = (-main.clients if main.lower else main.clients).reindex(examples.index)
    order = gains.sort_values(ascending=False, kind="stable").index
    names = [f"client {rank}" for rank in range(1, len(order) + 1)]
    choices: list[dict[str, Any]] = []
    room = _MOST_VALUES
    for metric, how in comparison.metrics.items():
        room -= len(order) * 2 * len(others)
        if choices and room < 0:
            break
        values = {method.name: client_means(method, how) for method in comparison.methods}
        for method in others:
            x, y = (
                {
                    "label": f"{label(metric)}, {of.short}",
                    "color": colors[of.name],
                    "values": rounded(values[of.name].reindex(order), 4),
                }
                for of in (baseline, method)
            )
            choices.append(
                {
                    "label": f"{label(metric)}: {method.short} against {baseline.short}",
                    "change": f"{label(metric)}, {method.short} minus {baseline.short}",
                    "x": x,
                    "y": y,
                    "lower": lower_is_better(metric),
                    "diagonal": True,
                }
            )
    return {
        "names": [shown(name) for name in order] if show_clients else names,
        "size": {"label": "examples", "values": rounded(examples.reindex(order), 5)},
        "choices": choices,
        "columns": [],
        "worse": "lost",
        "better": "gained",
    }


def against_bytes(comparison: Comparison) -> dict[str, Any] | None:
    """Returns what `scatter.js` draws: each run's metrics by what its clients received and sent.

    Runs in which nothing crosses, or nobody knows how much, are `left_out` by their method's name.
    """
    points: list[dict[str, Any]] = []
    left_out: dict[str, None] = {}
    colors = colors_of(comparison)
    for place, method in enumerate(comparison.methods):
        for seed, run in method.runs.items():
            if not run.num_bytes:
                left_out[method.name] = None
                continue
            points.append(
                {
                    "name": method.name,
                    "detail": f"seed {seed}",
                    "color": colors[method.name],
                    "shape": place,
                    "x": run.num_bytes,
                    "y": rounded([run.test[metric] for metric in comparison.metrics]),
                }
            )
    metrics = [{"label": label(m), "lower": lower_is_better(m)} for m in comparison.metrics]
    return {"metrics": metrics, "points": points, "left_out": [*left_out]} if points else None

"""The page of a comparison, and its rows as a CSV file next to it."""

from __future__ import annotations

import math
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.client_metrics import lower_is_better
from fedpersonal.files import atomic_write, write_text
from fedpersonal.report.charts import curve
from fedpersonal.report.comparison import EQUAL, Comparison, differing_options, tested_clients
from fedpersonal.report.page import meanings, render
from fedpersonal.report.pictures import series_of
from fedpersonal.report.run import label, round_numbers, shorten

# Most points of all curves of a panel.
_MOST_POINTS = 2_400
# Dashes in addition to colours, for colour-blind readers.
_DASHES = (None, "8 3", "2 3", "9 3 2 3")
_SOURCES = {"eval": "validation", "train": "training"}
# Most methods that a title names.
_FEW = 3
# Columns and rows.
Table = tuple[list[str], list[list[str]]]


def write_page(
    comparison: Comparison, page: str | os.PathLike, *, show_clients: bool = False
) -> list[pathlib.Path]:
    """Writes the page of a comparison, and its rows as a CSV file next to it.

    Args:
        comparison: The comparison.
        page: The page's path, which ends in `.html`.
        show_clients: Whether the page names clients; otherwise it numbers them by rank.

    Returns:
        The page and the CSV file.

    Raises:
        UserError: If a file cannot be written.
    """
    path = pathlib.Path(page)
    write_text(path, comparison_page(comparison, show_clients=show_clients))
    rows = path.with_suffix(".csv")
    with atomic_write(rows) as file:
        comparison.table().to_csv(file, index=False, lineterminator="\n")
    return [path, rows]


def comparison_page(comparison: Comparison, *, show_clients: bool = False) -> str:
    """Returns the page of a comparison."""
    methods = comparison.methods
    names = [method.name for method in methods]
    places = series_of([method.first.method for method in methods])
    colors = {name: f"series-{place}" for name, place in zip(names, places)}
    options = differing_options([method.first for method in methods])
    return render(
        "compare.jinja",
        data={
            "curves": {"panels": _curve_panels(comparison, colors)},
            "dots": _client_dots(comparison, colors, show_clients),
        },
        title=_title(comparison),
        prediction=methods[0].first.prediction,
        meanings=meanings(methods[0].first, [*comparison.metrics, *comparison.pooled]),
        verdicts=verdicts(comparison),
        reference=names[0],
        seeds=methods[0].seeds,
        has_seeds=any(len(method.runs) > 1 for method in methods),
        methods=_method_rows(comparison),
        costs=_cost_rows(comparison),
        differences=_difference_rows(comparison),
        options=(["option", *names], [[name, *values] for name, values in options.items()]),
        runs=_run_rows(comparison),
        show_clients=show_clients,
        colors=colors,
    )


def _curve_panels(comparison: Comparison, colors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the panels of `curves.js`, validation first, with one series per method."""
    methods, panels = comparison.methods, []
    most = _MOST_POINTS // len(methods)
    ranks = {metric: rank for rank, metric in enumerate(comparison.metrics)}
    columns = {n: None for m in methods for n in m.first.round_metrics}

    def place(name: str) -> tuple[bool, int]:
        return name.startswith("train/"), ranks.get(name.rpartition("/")[2], len(ranks))

    for name in sorted(columns, key=place):
        source, *details, metric = name.split("/")
        words = " ".join([_SOURCES[source], *details]).replace("_", " ")
        series = []
        for number, method in enumerate(methods):
            runs = list(method.runs.values())
            if all(name in run.round_metrics for run in runs):
                look = {"color": colors[method.name], "dash": _DASHES[number % len(_DASHES)]}
                series.append({"name": method.name, **look, **curve(runs, name, most)})
        meaning, lower = methods[0].first.meaning(metric), lower_is_better(metric)
        head = {"label": f"{label(metric)}, {words}", "meaning": meaning, "lower": lower}
        panels += [{**head, "series": series}] if series else []
    return panels


def _client_dots(
    comparison: Comparison, colors: Mapping[str, str], show_clients: bool
) -> dict[str, Any] | None:
    """Returns the data of `points.js`: each client by the reference and by another method.

    Clients are ordered by their gain by the second method, and named by that rank unless
    `show_clients`.
    """
    reference, *others = comparison.methods
    if not others:
        return None
    metric, definition = comparison.metric, comparison.metrics[comparison.metric]
    examples = pd.concat([tested_clients(run) for run in reference.paired]).groupby(level=0).mean()
    values = {
        m.name: m.client_means(definition).reindex(examples.index) for m in comparison.methods
    }
    change = values[others[0].name] - values[reference.name]
    order = change.sort_values(ascending=bool(lower_is_better(metric)), kind="stable").index
    columns = {
        name: {
            "label": f"{label(metric)}, {name}",
            "color": colors[name],
            "values": round_numbers(of_method.reindex(order), 4),
        }
        for name, of_method in values.items()
    }
    choices = [
        {
            "label": f"{label(metric)}: {method.name} against {reference.name}",
            "change": f"{label(metric)}, {method.name} minus {reference.name}",
            "x": columns[reference.name],
            "y": columns[method.name],
            "lower": lower_is_better(metric),
            "diagonal": True,
        }
        for method in others
    ]
    return {
        "names": [shorten(n) if show_clients else f"client {i}" for i, n in enumerate(order, 1)],
        "size": {"label": "examples", "values": round_numbers(examples.reindex(order), 5)},
        "choices": choices,
        "columns": [],
        "worse": "lost",
        "better": "gained",
    }


def verdicts(comparison: Comparison) -> list[str]:
    """Returns sentences on the main metric: one per method but the reference, and on baselines."""
    metric, digits = comparison.metric, _digits(comparison, comparison.metric)
    first, *others = (comparison.rows[method.name, metric] for method in comparison.methods)
    sentences = [_verdict(row, digits) for row in others]
    if "guess" in first and first["better"]:
        sign = -1 if first["better"] == "lower" else 1
        behind = [
            method.name
            for method in comparison.methods
            if sign * np.mean([run.test[metric] - first["guess_value"] for run in method.paired])
            <= 0
        ]
        sentence = f"The strongest baseline, {shorten(first['guess'])}, reaches {label(metric)} "
        sentence += f"{first['guess_value']:.{digits}f}"
        if len(behind) == len(comparison.methods):
            sentence += ": no method beats it"
        elif behind:
            sentence += f": {', '.join(behind)} {'does' if len(behind) == 1 else 'do'} not beat it"
        sentences.append(f"{sentence}.")
    elif first["better"]:
        sentences.append(f"The runs have no {label(metric)} of a baseline.")
    return sentences


def _verdict(row: Mapping[str, Any], digits: int) -> str:
    number, weighting = row["num_clients"], row["weighting"]
    averaging = "mean over clients" if weighting == EQUAL else f"pooled over {weighting}"
    higher = "higher" if row["difference"] > 0 else "lower"
    sentence = f"{label(row['metric'])} ({averaging}) of {row['method']} is "
    sentence += f"{abs(row['difference']):.{digits}f} {higher} than that of {row['baseline']}"
    if number == 1:
        return f"{sentence}, for a single client, too few to judge by."
    if math.isnan(row["low"]):
        return f"{sentence}, for {number} clients, too few to judge by."
    interval = f"(95 % interval {_signed(row['low'], digits)} to {_signed(row['high'], digits)})"
    if row["within_noise"]:
        sentence += f", which is within noise {interval}"
    elif not row["better"]:
        sentence += f" {interval}"
    else:
        judged = "better" if higher == row["better"] else "worse"
        judged += " for clients with a finite metric by both" if row["left_out"] else ""
        sentence += f", which is {judged} {interval}"
    if row["better"]:
        clients = row["gained"] + row["lost"] + row["same"]
        sentence += f"; {row['gained']:,} of {clients:,} clients gain, {row['lost']:,} lose"
    return f"{sentence}."


def _title(comparison: Comparison) -> str:
    """Returns the compared methods and their data set in a line."""
    first, names = comparison.methods[0], [method.name for method in comparison.methods]
    title = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    title = title if len(names) <= _FEW else f"{len(names)} methods"
    dataset = first.first.summary.get("dataset")
    title += f" on {shorten(dataset)}" if dataset else ""
    return title if len(names) > 1 else f"{title}, {len(first.runs)} seeds"


def _method_rows(comparison: Comparison) -> Table:
    """Returns the table of methods and their metrics, with the strongest baseline's metrics."""
    metrics = [*comparison.metrics, *comparison.pooled]
    digits = [_digits(comparison, metric) for metric in metrics]
    rows = [
        [m.name, ", ".join(map(str, m.runs))]
        + [_mean(m.values(metric).tolist(), d) for metric, d in zip(metrics, digits)]
        for m in comparison.methods
    ]
    reference = comparison.methods[0]
    reference_rows = [comparison.rows[reference.name, metric] for metric in metrics]
    if any("guess" in row for row in reference_rows):
        cells = [
            f"{row['guess_value']:,.{d}f}, {shorten(row['guess'])}" if "guess" in row else "–"
            for row, d in zip(reference_rows, digits)
        ]
        rows.append(["strongest baseline", ", ".join(map(str, reference.seeds)), *cells])
    return ["method", "seed numbers", *map(label, metrics)], rows


def _cost_rows(comparison: Comparison) -> Table:
    """Returns the table of methods' costs, and of the clients that personalisation worsens."""
    columns = ["method", "rounds", "MB moved", "minutes of training", "share of clients worse"]
    rows = []
    for method in comparison.methods:
        runs = method.runs.values()
        moved = [(run.bytes_per_round, run.summary.get("rounds")) for run in runs]
        minutes = [run.summary.get("train_wall_seconds") for run in runs]
        figures = [
            _mean([rounds for _, rounds in moved], 0),
            _mean([size * rounds if size and rounds else None for size, rounds in moved], 1, 1e-6),
            _mean(minutes, 2, 1 / 60),
            _mean([run.test.get("share_hurt") for run in runs], 3),
        ]
        rows.append([method.name, *figures])
    return columns, rows


def _difference_rows(comparison: Comparison) -> Table:
    """Returns the table of differences, with their percentiles over clients."""
    rows = []
    for (method, metric), row in comparison.rows.items():
        if "difference" not in row:
            continue
        digits = _digits(comparison, metric)
        low, high = (_signed(row[end], digits) for end in ("low", "high"))
        has_interval = not math.isnan(row["low"])
        text = _signed(row["difference"], digits)
        text += f" [{low}, {high}]" if has_interval else ", too few clients"
        text += f" ± {row['difference_sd']:.{digits}f}" if row["paired_seeds"] > 1 else ""
        text += ", within noise" if has_interval and row["within_noise"] else ""
        counts = [row[name] for name in ("gained", "lost", "same")]
        cells = ["–" if count is None else f"{count:,}" for count in counts]
        spread = [_signed(row[f"client_p{p}"], digits) for p in PERCENTILES]
        rows.append([method, label(metric), text, *cells, row["weighting"], *spread])
    columns = ["method", "metric", "difference", "gain", "lose", "the same", "weighting"]
    return [*columns, *(f"{p} %" for p in PERCENTILES)], rows


def _run_rows(comparison: Comparison) -> Table:
    """Returns the table of runs."""
    columns = ["method", "seed", "folder", "rounds", "clients tested", "examples"]
    rows = []
    for method in comparison.methods:
        for seed, run in method.runs.items():
            tested = tested_clients(run)
            counts = [run.summary.get("rounds", 0), len(tested), int(tested.sum())]
            rows.append([method.name, str(seed), run.path.name, *(f"{n:,}" for n in counts)])
    return columns, rows


def _digits(comparison: Comparison, metric: str) -> int:
    return 4 if abs(comparison.rows[comparison.methods[0].name, metric]["value"]) < 10 else 2


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _mean(values: Sequence[float | None], digits: int, scale: float = 1.0) -> str:
    """Returns the mean of the values that are not None, and their deviation if they differ."""
    numbers = [scale * value for value in values if value is not None]
    if not numbers:
        return "–"
    mean = statistics.mean(numbers)
    if len({*numbers}) == 1:  # Bytes are equal in all runs.
        return f"{mean:,.{digits}f}"
    deviation = statistics.stdev(numbers)
    return f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"

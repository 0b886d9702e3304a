"""The page of a comparison: one file to look at, with its rows as CSV beside it."""

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
from fedpersonal.report.comparison import Comparison, differing_options, tested_clients
from fedpersonal.report.page import meanings, render
from fedpersonal.report.pictures import series_of
from fedpersonal.report.run import label, rounded, shown

# So many points of all curves of a panel.
_MOST_POINTS = 2_400
# Beside colours, for who cannot tell them apart.
_DASHES = (None, "8 3", "2 3", "9 3 2 3")
_SOURCES = {"eval": "validation", "train": "training"}
# So many methods are named in a title.
_FEW = 3
# Columns and rows.
Table = tuple[list[str], list[list[str]]]


def write_page(
    comparison: Comparison, page: str | os.PathLike, *, show_clients: bool = False
) -> list[pathlib.Path]:
    """Writes the page of a comparison, and beside it its rows as CSV.

    Args:
        comparison: The comparison.
        page: The page's path, which ends in `.html`.
        show_clients: Whether the page names clients; else they are numbered by rank.

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
        predicts=methods[0].first.predicts,
        meanings=meanings(methods[0].first, [*comparison.metrics, *comparison.pooled]),
        verdicts=verdicts(comparison),
        baseline=names[0],
        seeds=methods[0].seeds,
        has_seeds=any(len(method.runs) > 1 for method in methods),
        methods=_method_rows(comparison),
        costs=_cost_rows(comparison),
        differences=_difference_rows(comparison),
        options=(["option", *names], [[name, *of] for name, of in options.items()]),
        runs=_run_rows(comparison),
        show_clients=show_clients,
        colors=colors,
    )


def _curve_panels(comparison: Comparison, colors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns what `curves.js` draws: panels, those of validation first, a series a method."""
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
    """Returns what `points.js` draws: each client by the baseline against by another method.

    Clients are ordered by what the first method but the baseline gains them, and named so unless
    `show_clients`.
    """
    baseline, *others = comparison.methods
    if not others:
        return None
    metric, how = comparison.metric, comparison.metrics[comparison.metric]
    examples = pd.concat([tested_clients(run) for run in baseline.paired]).groupby(level=0).mean()
    values = {m.name: m.of_clients(how).reindex(examples.index) for m in comparison.methods}
    change = values[others[0].name] - values[baseline.name]
    order = change.sort_values(ascending=bool(lower_is_better(metric)), kind="stable").index
    columns = {
        name: {
            "label": f"{label(metric)}, {name}",
            "color": colors[name],
            "values": rounded(of.reindex(order), 4),
        }
        for name, of in values.items()
    }
    choices = [
        {
            "label": f"{label(metric)}: {method.name} against {baseline.name}",
            "change": f"{label(metric)}, {method.name} minus {baseline.name}",
            "x": columns[baseline.name],
            "y": columns[method.name],
            "lower": lower_is_better(metric),
            "diagonal": True,
        }
        for method in others
    ]
    return {
        "names": [shown(n) if show_clients else f"client {i}" for i, n in enumerate(order, 1)],
        "size": {"label": "examples", "values": rounded(examples.reindex(order), 5)},
        "choices": choices,
        "columns": [],
        "worse": "lost",
        "better": "gained",
    }


def verdicts(comparison: Comparison) -> list[str]:
    """Returns a sentence for each method but the baseline on the main metric, and of the guess."""
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
        sentence = f"The best guess, {shown(first['guess'])}, has {label(metric)} "
        sentence += f"{first['guess_value']:.{digits}f}"
        if len(behind) == len(comparison.methods):
            sentence += ": no method beats it"
        elif behind:
            sentence += f": {', '.join(behind)} {'does' if len(behind) == 1 else 'do'} not beat it"
        sentences.append(f"{sentence}.")
    elif first["better"]:
        sentences.append(f"No run has the {label(metric)} of a guess that trains no model.")
    return sentences


def _verdict(row: Mapping[str, Any], digits: int) -> str:
    number, weighting = row["num_clients"], row["weighting"]
    whose = f"over all clients' {weighting} together"
    whose = "the mean over clients" if weighting == "all alike" else whose
    higher = "higher" if row["difference"] > 0 else "lower"
    sentence = f"{label(row['metric'])} of {row['method']}, {whose}, is "
    sentence += f"{abs(row['difference']):.{digits}f} {higher} than that of {row['baseline']}"
    if number == 1:
        return f"{sentence}, for the only client, which tells nothing of others."
    if math.isnan(row["low"]):
        return f"{sentence}, for {number} clients, too few to judge by."
    interval = f"(95 % interval {_signed(row['low'], digits)} to {_signed(row['high'], digits)})"
    if row["within_noise"]:
        sentence += f", which is within noise {interval}"
    elif not row["better"]:
        sentence += f" {interval}"
    else:
        judged = "better" if higher == row["better"] else "worse"
        judged += " for those who have a number by both" if row["left_out"] else ""
        sentence += f", which is {judged} {interval}"
    if row["better"]:
        clients = row["gained"] + row["lost"] + row["same"]
        sentence += f"; {row['gained']:,} of {clients:,} clients gain, {row['lost']:,} lose"
    return f"{sentence}."


def _title(comparison: Comparison) -> str:
    """Returns what is compared, in a line."""
    first, names = comparison.methods[0], [method.name for method in comparison.methods]
    title = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    title = title if len(names) <= _FEW else f"{len(names)} methods"
    dataset = first.first.summary.get("dataset")
    title += f" on {shown(dataset)}" if dataset else ""
    return title if len(names) > 1 else f"{title}, {len(first.runs)} seeds"


def _method_rows(comparison: Comparison) -> Table:
    """Returns the table of methods and their metrics, and of the best guess by each metric."""
    metrics = [*comparison.metrics, *comparison.pooled]
    digits = [_digits(comparison, metric) for metric in metrics]
    rows = [
        [m.name, ", ".join(map(str, m.runs))]
        + [_mean(m.values(metric).tolist(), d) for metric, d in zip(metrics, digits)]
        for m in comparison.methods
    ]
    baseline = comparison.methods[0]
    of_baseline = [comparison.rows[baseline.name, metric] for metric in metrics]
    if any("guess" in row for row in of_baseline):
        cells = [
            f"{row['guess_value']:,.{d}f}, {shown(row['guess'])}" if "guess" in row else "–"
            for row, d in zip(of_baseline, digits)
        ]
        rows.append(["best guess", ", ".join(map(str, baseline.seeds)), *cells])
    return ["method", "seed numbers", *map(label, metrics)], rows


def _cost_rows(comparison: Comparison) -> Table:
    """Returns the table of what methods take, and of whom personalisation hurts."""
    columns = ["method", "rounds", "MB moved", "minutes of training", "share of clients hurt"]
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
    columns = ["method", "metric", "difference", "gain", "lose", "the same", "clients weigh"]
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
    """Returns the mean of what is known, and the deviation where there are several."""
    numbers = [scale * value for value in values if value is not None]
    if not numbers:
        return "–"
    mean = statistics.mean(numbers)
    if len({*numbers}) == 1:  # Bytes are the same in all runs.
        return f"{mean:,.{digits}f}"
    deviation = statistics.stdev(numbers)
    return f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"

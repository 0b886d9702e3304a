"""The page of a comparison: one file to look at, with its rows as CSV beside it."""

from __future__ import annotations

import os
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.client_metrics import find_metric, lower_is_better
from fedpersonal.files import atomic_write, write_text
from fedpersonal.report.charts import thin
from fedpersonal.report.compared import ComparedMethod, differing_options
from fedpersonal.report.comparison import Comparison, Difference, client_means
from fedpersonal.report.page import render
from fedpersonal.report.pictures import series_of
from fedpersonal.report.run import RunData, label, rounded, shown

# So many numbers of clients at most; further metrics are in the table alone.
_MOST_VALUES = 120_000
# So many points of all curves of a panel, and so many of each.
_MOST_POINTS, _FEWEST_POINTS = 2_400, 90
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
    data: dict[str, Any] = {
        "curves": {"panels": _curve_bands(comparison)},
        "dots": _client_dots(comparison, show_clients=show_clients),
    }
    return render(
        "compare.jinja",
        data=data,
        title=_title(comparison),
        verdicts=verdicts(comparison),
        baseline=methods[0].name,
        seeds=methods[0].seeds,
        has_seeds=any(len(method.runs) > 1 for method in methods),
        methods=_method_rows(comparison),
        costs=_cost_rows(methods),
        differences=_difference_rows(comparison),
        options=_option_rows(methods),
        runs=_run_rows(methods),
        show_clients=show_clients,
        colors=_colors(comparison),
    )


def _colors(comparison: Comparison) -> dict[str, str]:
    """Returns the CSS variable of each method's colour, by the method's name."""
    methods = comparison.methods
    series = series_of([method.first.data.method for method in methods])
    return {method.name: f"series-{place}" for method, place in zip(methods, series)}


def _curve_bands(comparison: Comparison) -> list[dict[str, Any]]:
    """Returns what `curves.js` draws: panels, those of validation first, a series a method.

    A series is the mean over seeds in each round that all of them have; `low` and `high` are a
    standard deviation below and above it, where there are several seeds.
    """
    series_of_metric: dict[str, list[dict[str, Any]]] = {}
    methods, colors = comparison.methods, _colors(comparison)
    for place, method in enumerate(methods):
        runs = [run.data for run in method.runs.values()]
        look = {"color": colors[method.name], "dash": _DASHES[place % len(_DASHES)]}
        for name in runs[0].round_metrics:
            if all(name in run.round_metrics for run in runs):
                most = max(_FEWEST_POINTS, _MOST_POINTS // len(methods))
                series = {"name": method.name, **look, **_band(runs, name, most)}
                series_of_metric.setdefault(name, []).append(series)
    panels = []
    ranks = {metric: rank for rank, metric in enumerate(comparison.metrics)}

    def place_of(name: str) -> tuple[bool, int]:
        return name.startswith("train/"), ranks.get(name.rpartition("/")[2], len(ranks))

    for name in sorted(series_of_metric, key=place_of):
        source, *details, metric = name.split("/")
        words = " ".join([_SOURCES[source], *details]).replace("_", " ")
        head = {"label": f"{label(metric)}, {words}", "lower": lower_is_better(metric)}
        panels.append({**head, "series": series_of_metric[name]})
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


def _client_dots(comparison: Comparison, *, show_clients: bool) -> dict[str, Any] | None:
    """Returns what `points.js` draws: each client by the baseline against by another method.

    Args:
        comparison: The comparison.
        show_clients: Whether clients have their names; else their rank by what the first method
            but the baseline gains them.
    """
    if not comparison.differences:
        return None
    colors = _colors(comparison)
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
                    "label": f"{label(metric)}, {of.name}",
                    "color": colors[of.name],
                    "values": rounded(values[of.name].reindex(order), 4),
                }
                for of in (baseline, method)
            )
            choices.append(
                {
                    "label": f"{label(metric)}: {method.name} against {baseline.name}",
                    "change": f"{label(metric)}, {method.name} minus {baseline.name}",
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


def verdicts(comparison: Comparison) -> list[str]:
    """Returns a sentence for each method but the baseline on the main metric.

    Of three and more methods, the first sentence names the best and the worst one.
    """
    metric, methods = comparison.metric, comparison.methods
    sentences = [
        _verdict(comparison, method.name, comparison.differences[method.name][metric])
        for method in methods[1:]
    ]
    further, first = [_against_guess(comparison, metric)], methods[0].first
    headlines = (find_metric(name, first.test) for name in first.usual_metrics)
    headline: str = next(filter(None, headlines), "")
    if headline in comparison.pooled:
        further += [_pooled(comparison, headline), _against_guess(comparison, headline)]
    lower = lower_is_better(metric)
    if len(sentences) >= 2 and lower is not None:
        means = {m.name: comparison.values(m, metric).mean() for m in methods}
        names = sorted(means, key=lambda name: means[name], reverse=not lower)
        digits = _digits(comparison, metric)
        best, worst = (f"{n}, {means[n]:.{digits}f}" for n in (names[0], names[-1]))
        sentence = f"Of {len(means)} methods, the best {label(metric)} is that of {best}"
        sentences.insert(0, f"{sentence}, the worst that of {worst}.")
    return [*sentences, *filter(None, further)]


def _verdict(comparison: Comparison, name: str, difference: Difference) -> str:
    metric, baseline, mean = label(comparison.metric), comparison.methods[0].name, difference.mean
    digits, counts = _digits(comparison, comparison.metric), difference.counts()
    interval = f"95 % interval {_signed(mean.low, digits)} to {_signed(mean.high, digits)}"
    weighting = comparison.weighting(comparison.metric)
    whose = f"over all clients' {weighting} together"
    whose = "the mean over clients" if weighting == "all alike" else whose
    sentence = f"{metric} of {name}, {whose}, is {abs(mean.difference):.{digits}f}"
    sentence += f" {'higher' if mean.difference > 0 else 'lower'} than that of {baseline}"
    if len(difference.clients) == 1:
        return f"{sentence}, for the only client, which tells nothing of others."
    if not mean.has_interval:
        return f"{sentence}, for {len(difference.clients)} clients, too few to judge by."
    if mean.is_within_noise:
        sentence += f", which is within noise ({interval})"
    elif difference.lower is None:
        sentence += f" ({interval})"
    else:
        judged = "better" if (mean.difference < 0) == difference.lower else "worse"
        judged += " for those who have a number by both" if difference.left_out else ""
        sentence += f", which is {judged} ({interval})"
    if counts["gained"] is not None:
        clients = len(difference.clients) + difference.broken + difference.mended
        sentence += f"; {counts['gained']:,} of {clients:,} clients gain, {counts['lost']:,} lose"
    if difference.broken:
        sentence += f", {difference.broken:,} of them as they have no number by {name}"
    return f"{sentence}."


def _against_guess(comparison: Comparison, metric: str) -> str:
    """Says which methods do not beat the best guess; nothing where there is none."""
    best, lower = comparison.guess(metric), lower_is_better(metric)
    if not best or lower is None:
        return ""
    sign, digits = (-1 if lower else 1), _digits(comparison, metric)
    names = [
        method.name
        for method in comparison.methods
        if sign * (np.mean([run.test[metric] for run in method.paired]) - best[1]) <= 0
    ]
    sentence = f"The best guess, {shown(best[0])}, has {label(metric)} {best[1]:.{digits}f}"
    if len(names) == len(comparison.methods):
        return f"{sentence}: no method beats it."
    do = "does" if len(names) == 1 else "do"
    return f"{sentence}: {', '.join(names)} {do} not beat it." if names else f"{sentence}."


def _pooled(comparison: Comparison, metric: str) -> str:
    digits = _digits(comparison, metric)
    values = ", ".join(
        f"{comparison.values(m, metric).mean():.{digits}f} by {m.name}" for m in comparison.methods
    )
    return f"{label(metric)}, which is of all examples at once and has no interval, is {values}."


def _title(comparison: Comparison) -> str:
    """Returns what is compared, in a line."""
    names = [method.name for method in comparison.methods]
    dataset = comparison.methods[0].first.data.summary.get("dataset")
    end = f" on {shown(dataset)}" if dataset else ""
    if len(names) > _FEW:
        return f"{len(names)} methods{end}"
    if len(names) == 1:
        return f"{names[0]}{end}, {len(comparison.methods[0].runs)} seeds"
    return f"{', '.join(names[:-1])} and {names[-1]}{end}"


def _method_rows(comparison: Comparison) -> Table:
    """Returns the table of methods and their metrics, and of the best guess by each metric."""
    metrics = [*comparison.metrics, *comparison.pooled]
    digits = {metric: _digits(comparison, metric) for metric in metrics}
    rows = []
    for method in comparison.methods:
        means = (_mean(comparison.values(method, m).tolist(), digits[m]) for m in metrics)
        rows.append([method.name, ", ".join(map(str, method.runs)), *means])
    guesses = {metric: comparison.guess(metric) for metric in metrics}
    if any(guesses.values()):
        cells = [
            f"{best[1]:,.{digits[metric]}f}, {shown(best[0])}" if best else "–"
            for metric, best in guesses.items()
        ]
        rows.append(["best guess", ", ".join(map(str, comparison.methods[0].seeds)), *cells])
    return ["method", "seed numbers", *map(label, metrics)], rows


def _cost_rows(methods: Sequence[ComparedMethod]) -> Table:
    """Returns the table of what methods take, and of whom personalisation hurts."""
    columns = ["method", "rounds", "MB moved", "minutes of training", "share of clients hurt"]
    rows = []
    for method in methods:
        runs = method.runs.values()
        summaries = [run.data.summary for run in runs]
        figures = [
            _mean([summary.get("rounds") for summary in summaries], 0),
            _mean([run.num_bytes for run in runs], 1, 1e-6),
            _mean([summary.get("train_wall_seconds") for summary in summaries], 2, 1 / 60),
            _mean([run.test.get("share_hurt") for run in runs], 3),
        ]
        rows.append([method.name, *figures])
    return columns, rows


def _difference_rows(comparison: Comparison) -> Table:
    """Returns the table of differences, with their percentiles over clients."""
    rows = []
    for name, metrics in comparison.differences.items():
        for metric, difference in metrics.items():
            digits, mean, seeds = _digits(comparison, metric), difference.mean, difference.by_seed
            figures = (mean.difference, mean.low, mean.high, *difference.percentiles)
            middle, low, high, *spread = (_signed(figure, digits) for figure in figures)
            text = (
                f"{middle} [{low}, {high}]" if mean.has_interval else f"{middle}, too few clients"
            )
            text += f" ± {seeds.std(ddof=1):.{digits}f}" if len(seeds) > 1 else ""
            text += ", within noise" if mean.has_interval and mean.is_within_noise else ""
            counts = ["–" if n is None else f"{n:,}" for n in difference.counts().values()]
            weighting = comparison.weighting(metric)
            rows.append([name, label(metric), text, *counts, weighting, *spread])
    columns = ["method", "metric", "difference", "gain", "lose", "the same", "clients weigh"]
    return [*columns, *(f"{p} %" for p in PERCENTILES)], rows


def _option_rows(methods: Sequence[ComparedMethod]) -> Table:
    """Returns the table of options that differ."""
    firsts = [method.first for method in methods]
    columns = ["option", *(method.name for method in methods)]
    rows = [[name, *(run.shown(name) for run in firsts)] for name in differing_options(firsts)]
    return columns, rows


def _run_rows(methods: Sequence[ComparedMethod]) -> Table:
    """Returns the table of runs."""
    columns = ["method", "seed", "folder", "rounds", "clients tested", "examples"]
    rows = [
        [method.name, str(seed), run.data.path.name, f"{run.data.summary.get('rounds', 0):,}"]
        + [f"{len(run.tested):,}", f"{int(run.tested.sum()):,}"]
        for method in methods
        for seed, run in method.runs.items()
    ]
    return columns, rows


def _digits(comparison: Comparison, metric: str) -> int:
    return 4 if abs(comparison.values(comparison.methods[0], metric).mean()) < 10 else 2


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

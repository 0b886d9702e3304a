"""The page of a comparison: one file to look at, with its rows as CSV beside it."""

from __future__ import annotations

import os
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpersonal.atomic_files import atomic_write, write_text
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.direction import find_metric, lower_is_better
from fedpersonal.report.compared_runs import ComparedMethod, differing_options
from fedpersonal.report.comparison import Comparison, Difference, compare_runs
from fedpersonal.report.comparison_charts import against_bytes, client_dots, colors_of, curve_bands
from fedpersonal.report.numbers import label, shown
from fedpersonal.report.write import render

# So many methods are named in a title.
_FEW = 3
# Columns and rows.
Table = tuple[list[str], list[list[str]]]


def write_comparison(
    folders: Sequence[str | os.PathLike],
    page: str | os.PathLike,
    *,
    metric: str | None = None,
    show_clients: bool = False,
) -> list[pathlib.Path]:
    """Compares finished runs and writes a page, and beside it its rows as CSV.

    Args:
        folders: 2 to 10 run folders. The method of the first is the one that others are compared
            with; runs that differ by their seed alone are one method.
        page: The page's path, which ends in `.html`.
        metric: The metric to judge by; None for the usual one.
        show_clients: Whether the page names clients; else they are numbered by rank.

    Returns:
        The page and the CSV file.

    Raises:
        UserError: If the runs cannot be compared, or a file cannot be written.
    """
    return write_page(compare_runs(folders, metric=metric), page, show_clients=show_clients)


def write_page(
    comparison: Comparison, page: str | os.PathLike, *, show_clients: bool = False
) -> list[pathlib.Path]:
    """Writes what `write_comparison` writes of runs that are compared already."""
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
        "curves": {"panels": curve_bands(comparison)},
        "dots": client_dots(comparison, show_clients=show_clients),
        "bytes": against_bytes(comparison),
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
        colors=colors_of(comparison),
    )


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
    found = (find_metric(name, first.test) for name in first.usual_metrics)
    headline: str = next(filter(None, found), "")
    if headline in comparison.pooled:
        further += [_pooled(comparison, headline), _against_guess(comparison, headline)]
    lower = lower_is_better(metric)
    if len(sentences) >= 2 and lower is not None:
        means = {m.name: comparison.values(m, metric).mean() for m in methods}
        names = sorted(means, key=lambda name: means[name], reverse=not lower)
        digits = _digits(comparison, metric)
        best, worst = (f"{n}, {means[n]:.{digits}f}" for n in (names[0], names[-1]))
        told = f"Of {len(means)} methods, the best {label(metric)} is that of {best}"
        sentences.insert(0, f"{told}, the worst that of {worst}.")
    return [*sentences, *filter(None, further)]


def _verdict(comparison: Comparison, name: str, found: Difference) -> str:
    metric, baseline, mean = label(comparison.metric), comparison.methods[0].name, found.mean
    digits, counts = _digits(comparison, comparison.metric), found.counts()
    interval = f"95 % interval {_signed(mean.low, digits)} to {_signed(mean.high, digits)}"
    weighting = comparison.weighting(comparison.metric)
    whose = f"over all clients' {weighting} together"
    whose = "the mean over clients" if weighting == "all alike" else whose
    said = f"{metric} of {name}, {whose}, is {abs(mean.difference):.{digits}f}"
    said += f" {'higher' if mean.difference > 0 else 'lower'} than that of {baseline}"
    if len(found.clients) == 1:
        return f"{said}, for the only client, which tells nothing of others."
    if not mean.has_interval:
        return f"{said}, for {len(found.clients)} clients, too few to judge by."
    if mean.is_within_noise:
        said += f", which is within noise ({interval})"
    elif found.lower is None:
        said += f" ({interval})"
    else:
        judged = "better" if (mean.difference < 0) == found.lower else "worse"
        judged += " for those who have a number by both" if found.left_out else ""
        said += f", which is {judged} ({interval})"
    if counts["gained"] is not None:
        clients = len(found.clients) + found.broken + found.mended
        said += f"; {counts['gained']:,} of {clients:,} clients gain, {counts['lost']:,} lose"
    if found.broken:
        said += f", {found.broken:,} of them as they have no number by {name}"
    return f"{said}."


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
    said = f"The best guess, {shown(best[0])}, has {label(metric)} {best[1]:.{digits}f}"
    if len(names) == len(comparison.methods):
        return f"{said}: no method beats it."
    do = "does" if len(names) == 1 else "do"
    return f"{said}: {', '.join(names)} {do} not beat it." if names else f"{said}."


def _pooled(comparison: Comparison, metric: str) -> str:
    digits = _digits(comparison, metric)
    told = ", ".join(
        f"{comparison.values(m, metric).mean():.{digits}f} by {m.name}" for m in comparison.methods
    )
    return f"{label(metric)}, which is of all examples at once and has no interval, is {told}."


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
        for metric, found in metrics.items():
            digits, mean, seeds = _digits(comparison, metric), found.mean, found.by_seed
            figures = (mean.difference, mean.low, mean.high, *found.percentiles)
            middle, low, high, *spread = (_signed(figure, digits) for figure in figures)
            text = (
                f"{middle} [{low}, {high}]" if mean.has_interval else f"{middle}, too few clients"
            )
            text += f" ± {seeds.std(ddof=1):.{digits}f}" if len(seeds) > 1 else ""
            text += ", within noise" if mean.has_interval and mean.is_within_noise else ""
            counts = ["–" if n is None else f"{n:,}" for n in found.counts().values()]
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
    known = [scale * value for value in values if value is not None]
    if not known:
        return "–"
    mean = statistics.mean(known)
    if len({*known}) == 1:  # Bytes are the same in all runs.
        return f"{mean:,.{digits}f}"
    deviation = statistics.stdev(known)
    return f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"

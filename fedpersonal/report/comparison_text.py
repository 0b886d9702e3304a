"""A comparison in words and tables, as Markdown and CSV."""

from __future__ import annotations

import html
import pathlib
import statistics
from collections.abc import Sequence

import numpy as np
import tabulate

from fedpersonal.errors import escaped
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.direction import find_metric, lower_is_better
from fedpersonal.files import atomic_write, write_text
from fedpersonal.report.compared_runs import ComparedMethod, differing_options
from fedpersonal.report.comparison import Comparison, Difference
from fedpersonal.report.numbers import label, shown

# So many methods are named in a title.
_FEW = 3
# Columns and rows.
Table = tuple[list[str], list[list[str]]]

ABOUT_SPREAD = (
    "Percentiles over clients of their differences. Here, and in the charts above, each client "
    "counts once, however many examples it has."
)
ABOUT_COSTS = (
    "MB moved: what each client receives and sends in a round of training, times clients a round, "
    "times rounds. Global variables and sums of metrics cross, local variables do not: a method "
    "moves more if more of its model is global, or more rounds or clients train it. Clients are "
    "hurt whose loss is higher after personalisation than before."
)


def about(comparison: Comparison) -> str:
    """Returns what differences are."""
    baseline, seeds = comparison.methods[0].name, comparison.methods[0].seeds
    said = (
        f"A difference is the method's figure less that of {baseline}, on the same examples of the "
        "same clients: over all of them together or, where clients weigh all alike, the mean over "
        "clients. Its 95 % interval is in brackets, by a paired bootstrap over clients or, of fewer"
        " than 30, by their subsets; fewer than 6 have none; "
    )
    if len(seeds) > 1:
        said += (
            f"then, after ±, the standard deviation over the seeds {', '.join(map(str, seeds))}, "
            "each with a training and a split of its own. A client that several seeds test counts "
            "once, with its mean; "
        )
    return (
        f"{said}within noise: the interval has 0 in it. The interval is over clients; another seed "
        "would move the result, too, and that is not in it."
    )


def about_methods(comparison: Comparison) -> str:
    """Returns what the figures of methods are."""
    if all(len(method.runs) == 1 for method in comparison.methods):
        return "Each figure is of one run: how much another seed would change is not known."
    return "Figures are means over seeds, ± their standard deviation."


def verdicts(comparison: Comparison) -> list[str]:
    """Returns a sentence for each method but the baseline on the main metric.

    Of three and more methods, the first sentence names the best and the worst one.
    """
    sentences = [
        _verdict(comparison, method.name, comparison.differences[method.name][comparison.metric])
        for method in comparison.methods[1:]
    ]
    further, first = [_guessed(comparison, comparison.metric)], comparison.methods[0].first
    task = first.data.task
    found = (find_metric(name, first.test) for name in (task.metrics if task else ()))
    headline: str = next(filter(None, found), "")
    if headline in comparison.pooled:
        further += [_pooled(comparison, headline), _guessed(comparison, headline)]
    lower = lower_is_better(comparison.metric)
    if len(sentences) < 2 or lower is None:
        return [*sentences, *filter(None, further)]
    means = {m.name: comparison.values(m, comparison.metric).mean() for m in comparison.methods}
    names = sorted(means, key=lambda name: means[name], reverse=not lower)
    best, worst = (
        f"{n}, {means[n]:.{_digits(comparison, comparison.metric)}f}" for n in (names[0], names[-1])
    )
    told = f"Of {len(means)} methods, the best {label(comparison.metric)} is that of {best}"
    return [f"{told}, the worst that of {worst}.", *sentences, *filter(None, further)]


def _guessed(comparison: Comparison, metric: str) -> str:
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


def _verdict(comparison: Comparison, name: str, found: Difference) -> str:
    metric, baseline, mean = label(comparison.metric), comparison.methods[0].name, found.mean
    digits, counts = _digits(comparison, comparison.metric), found.counts()
    interval = f"95 % interval {_signed(mean.low, digits)} to {_signed(mean.high, digits)}"
    said = f"{metric} of {name}, {_whose(comparison)}, is {abs(mean.difference):.{digits}f}"
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


def _whose(comparison: Comparison) -> str:
    """Returns which of two means the main metric is."""
    weighting = comparison.weighting(comparison.metric)
    if weighting == "all alike":
        return "the mean over clients"
    return f"over all clients' {weighting} together"


def method_rows(comparison: Comparison) -> Table:
    """Returns the table of methods and their metrics, and of the best guess by each metric."""
    metrics = [*comparison.metrics, *comparison.pooled]
    rows = [
        [
            method.name,
            ", ".join(map(str, method.runs)),
            *(
                _mean(comparison.values(method, metric).tolist(), _digits(comparison, metric))
                for metric in metrics
            ),
        ]
        for method in comparison.methods
    ]
    guesses = [(metric, comparison.guess(metric)) for metric in metrics]
    if any(best for _, best in guesses):
        cells = [
            f"{best[1]:,.{_digits(comparison, metric)}f}, {shown(best[0])}" if best else "–"
            for metric, best in guesses
        ]
        rows.append(["best guess", ", ".join(map(str, comparison.methods[0].seeds)), *cells])
    return ["method", "seed numbers", *map(label, metrics)], rows


def cost_rows(methods: Sequence[ComparedMethod]) -> Table:
    """Returns the table of what methods take, and of whom personalisation hurts."""
    columns = ["method", "rounds", "MB moved", "minutes of training", "share of clients hurt"]
    rows = []
    for method in methods:
        runs = method.runs.values()
        summaries = [run.data.summary for run in runs]
        figures = [
            _mean([told.get("rounds") for told in summaries], 0),
            _mean([run.num_bytes for run in runs], 1, 1e-6),
            _mean([told.get("train_wall_seconds") for told in summaries], 2, 1 / 60),
            _mean([run.test.get("share_hurt") for run in runs], 3),
        ]
        rows.append([method.name, *figures])
    return columns, rows


def difference_rows(comparison: Comparison) -> Table:
    """Returns the table of differences; no rows for a single method."""
    rows = []
    for name, metrics in comparison.differences.items():
        for metric, found in metrics.items():
            digits, mean, seeds = _digits(comparison, metric), found.mean, found.by_seed
            figures = (mean.difference, mean.low, mean.high)
            middle, low, high = (_signed(figure, digits) for figure in figures)
            text = (
                f"{middle} [{low}, {high}]" if mean.has_interval else f"{middle}, too few clients"
            )
            text += f" ± {seeds.std(ddof=1):.{digits}f}" if len(seeds) > 1 else ""
            text += ", within noise" if mean.has_interval and mean.is_within_noise else ""
            counts = ["–" if n is None else f"{n:,}" for n in found.counts().values()]
            rows.append([name, label(metric), text, *counts, comparison.weighting(metric)])
    return ["method", "metric", "difference", "gain", "lose", "the same", "clients weigh"], rows


def spread_rows(comparison: Comparison) -> Table:
    """Returns the table of percentiles of clients' differences."""
    rows = []
    for name, metrics in comparison.differences.items():
        for metric, found in metrics.items():
            digits = _digits(comparison, metric)
            spread = np.percentile(found.clients, PERCENTILES)
            rows.append([name, label(metric), *(_signed(value, digits) for value in spread)])
    return ["method", "metric", *(f"{p} %" for p in PERCENTILES)], rows


def option_rows(methods: Sequence[ComparedMethod]) -> Table:
    """Returns the table of options that differ."""
    firsts = [method.first for method in methods]
    columns = ["option", *(method.name for method in methods)]
    rows = [[name, *(run.shown(name) for run in firsts)] for name in differing_options(firsts)]
    return columns, rows


def run_rows(methods: Sequence[ComparedMethod]) -> Table:
    """Returns the table of runs."""
    columns = ["method", "seed", "folder", "rounds", "clients tested", "examples"]
    rows = [
        [method.name, str(seed), run.data.path.name, f"{run.data.summary.get('rounds', 0):,}"]
        + [f"{len(run.tested):,}", f"{int(run.tested.sum()):,}"]
        for method in methods
        for seed, run in method.runs.items()
    ]
    return columns, rows


def markdown(comparison: Comparison) -> str:
    """Returns the comparison in GitHub's Markdown."""
    baseline = comparison.methods[0].name
    parts = [f"# {title(comparison)}", *map(_cell, verdicts(comparison))]
    parts += ["## Methods", about_methods(comparison), _table(*method_rows(comparison))]
    parts += [ABOUT_COSTS, _table(*cost_rows(comparison.methods))]
    if comparison.differences:
        said = _cell(about(comparison))
        parts += [f"## Differences from {baseline}", said, _table(*difference_rows(comparison))]
        parts += [ABOUT_SPREAD, _table(*spread_rows(comparison))]
        parts += ["## Options that differ", _table(*option_rows(comparison.methods))]
    parts += ["## Runs", _table(*run_rows(comparison.methods))]
    return "\n\n".join(_cell(p) if p.startswith("#") else p for p in parts)


def title(comparison: Comparison) -> str:
    """Returns what is compared, in a line."""
    names = [method.name for method in comparison.methods]
    dataset = comparison.methods[0].first.data.summary.get("dataset")
    end = f" on {shown(dataset)}" if dataset else ""
    if len(names) > _FEW:
        return f"{len(names)} methods{end}"
    if len(names) == 1:
        return f"{names[0]}{end}, {len(comparison.methods[0].runs)} seeds"
    return f"{', '.join(names[:-1])} and {names[-1]}{end}"


def write_tables(comparison: Comparison, page: pathlib.Path) -> list[pathlib.Path]:
    """Writes the Markdown and the CSV file beside a page, and returns their paths."""
    texts, rows = page.with_suffix(".md"), page.with_suffix(".csv")
    write_text(texts, markdown(comparison))
    with atomic_write(rows) as file:
        comparison.table().to_csv(file, index=False, lineterminator="\n")
    return [texts, rows]


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


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[_cell(text) for text in row] for row in rows]
    headers = [_cell(column) for column in columns]
    return tabulate.tabulate(cells, headers, tablefmt="github", disable_numparse=True)


def _cell(text: str) -> str:
    """Returns a text of which Markdown makes nothing else: a bar would end a cell."""
    return html.escape(escaped(text), quote=False).replace("|", "∣")

"""A comparison in words and tables, as Markdown and CSV."""

from __future__ import annotations

import html
import pathlib
from collections.abc import Sequence

import tabulate

from fedpersonal.atomic_files import atomic_write, write_text
from fedpersonal.errors import escaped
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.report.compared_runs import ComparedMethod, differing_options
from fedpersonal.report.comparison import Comparison

ABOUT = """\
A difference is the method's figure less that of {baseline}, from the same examples of the same \
clients, seed by seed. In brackets: its 95 % interval by a paired bootstrap over clients (a client \
that several seeds test counts as one). Then, after ±, the standard deviation over seeds, each \
with a training and a split of its own. *Within noise*: the interval has 0 in it. A client gains \
or loses by its mean over the seeds that test it."""
ABOUT_METHODS = "Figures are means over seeds, ± their standard deviation."


def verdicts(comparison: Comparison) -> list[str]:
    """Returns a sentence for each method but the baseline on the main metric."""
    metric, baseline = comparison.metric, comparison.methods[0].name
    sentences = []
    for name, found in ((m.name, comparison.differences.get(m.name)) for m in comparison.methods):
        if found is None:
            continue
        told, counts = found[metric], found[metric].counts()
        low, high = sorted((abs(told.mean.low), abs(told.mean.high)))
        way = "higher" if told.mean.difference > 0 else "lower"
        digits = _digits(comparison, metric)
        if told.mean.is_within_noise:
            interval = f"[{told.mean.low:+.{digits}f}, {told.mean.high:+.{digits}f}]"
            said = f"{metric} of {name} and {baseline} differ by no more than noise, {interval}"
        else:
            is_better = (told.mean.difference < 0) == told.lower
            judged = "" if told.lower is None else f" ({'better' if is_better else 'worse'})"
            said = (
                f"{metric} of {name} is {abs(told.mean.difference):.{digits}f} {way}{judged} than "
                f"that of {baseline}, [{low:.{digits}f}, {high:.{digits}f}]"
            )
        clients = len(told.clients)
        if counts["gained"] is not None:
            said += (
                f"; {counts['gained']:,} of {clients:,} clients gained "
                f"({counts['gained'] / clients:.0%}), {counts['lost']:,} lost"
            )
        sentences.append(f"{said}.")
    return sentences


def method_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and rows of the table of methods."""
    columns = ["method", "seeds", *comparison.metrics, "share hurt", "MB moved", "minutes"]
    rows = []
    for method in comparison.methods:
        figures = []
        for metric in comparison.metrics:
            values = comparison.values(method, metric)
            figures.append(_mean(values.tolist(), _digits(comparison, metric)))
        runs = method.runs.values()
        hurt = [run.test.get("share_hurt") for run in runs]
        moved = [run.num_bytes for run in runs]
        seconds = [run.data.summary.get("train_wall_seconds") for run in runs]
        seeds = ", ".join(str(seed) for seed in method.runs)
        rows.append(
            [method.name, seeds, *figures]
            + [_mean(hurt, 3), _mean(moved, 1, 1e-6), _mean(seconds, 2, 1 / 60)]
        )
    return columns, rows


def difference_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and rows of the table of differences, none of a single method."""
    columns = ["method", "metric", "difference", "gained", "lost", "the same", "weighting"]
    columns += [f"clients' {p} %" for p in PERCENTILES]
    rows = []
    for name, metrics in comparison.differences.items():
        for metric, found in metrics.items():
            digits = _digits(comparison, metric)
            mean, clients = found.mean, found.clients
            seeds = found.by_seed
            figures = (mean.difference, mean.low, mean.high)
            middle, low, high = (f"{figure:+.{digits}f}" for figure in figures)
            text = f"{middle} [{low}, {high}]"
            text += f" ± {seeds.std(ddof=1):.{digits}f}" if len(seeds) > 1 else ""
            text += ", within noise" if mean.is_within_noise else ""
            counts = ["–" if n is None else f"{n:,}" for n in found.counts().values()]
            spread = [f"{clients.quantile(p / 100):+.{digits}f}" for p in PERCENTILES]
            rows.append([name, metric, text, *counts, comparison.weighting(metric), *spread])
    return columns, rows


def option_rows(methods: Sequence[ComparedMethod]) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and rows of the table of options that differ."""
    differ = differing_options([method.first for method in methods])
    columns = ["option", *(method.name for method in methods)]
    rows = [[n, *(v[:200] or "–" for v in values)] for n, values in differ.items()]
    return columns, rows


def run_rows(methods: Sequence[ComparedMethod]) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and rows of the table of runs."""
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
    parts = [f"# {title(comparison)}", *verdicts(comparison)]
    parts += ["## Methods", ABOUT_METHODS, _table(*method_rows(comparison))]
    if comparison.differences:
        about = ABOUT.format(baseline=_cell(baseline))
        parts += [f"## Differences from {baseline}", about, _table(*difference_rows(comparison))]
        parts += ["## Options that differ", _table(*option_rows(comparison.methods))]
    parts += ["## Runs", _table(*run_rows(comparison.methods))]
    return "\n\n".join(_cell(p) if p.startswith("#") else p for p in parts)


def title(comparison: Comparison) -> str:
    """Returns what is compared, in a line."""
    names = [method.name for method in comparison.methods]
    if len(names) == 1:
        return f"{names[0]}, {len(comparison.methods[0].runs)} seeds"
    return f"{', '.join(names[:-1])} and {names[-1]} compared"


def write_tables(comparison: Comparison, page: pathlib.Path) -> list[pathlib.Path]:
    """Writes the Markdown and the CSV file beside a page, and returns their paths."""
    texts, rows = page.with_suffix(".md"), page.with_suffix(".csv")
    write_text(texts, markdown(comparison))
    with atomic_write(rows) as file:
        comparison.table().to_csv(file, index=False, lineterminator="\n")
    return [texts, rows]


def _digits(comparison: Comparison, metric: str) -> int:
    return 4 if abs(comparison.values(comparison.methods[0], metric).mean()) < 10 else 2


def _mean(values: Sequence[float | None], digits: int, scale: float = 1.0) -> str:
    """Returns the mean of what is known, and the deviation where there are several."""
    known = [scale * value for value in values if value is not None]
    if not known:
        return "–"
    mean = sum(known) / len(known)
    if len(known) == 1:
        return f"{mean:,.{digits}f}"
    deviation = (sum((v - mean) ** 2 for v in known) / (len(known) - 1)) ** 0.5
    return f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[_cell(text) for text in row] for row in rows]
    headers = [_cell(column) for column in columns]
    return tabulate.tabulate(cells, headers, tablefmt="github", disable_numparse=True)


def _cell(text: str) -> str:
    """Returns a text of which Markdown makes nothing else: a bar would end a cell."""
    return html.escape(escaped(text), quote=False).replace("|", "∣")

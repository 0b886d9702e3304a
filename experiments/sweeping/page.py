"""What a sweep writes: a page, a row a run for programs, and the command of the chosen setting."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import tabulate

from experiments.papers.table import Cell
from experiments.sweeping.grid import value_text, values_text
from experiments.sweeping.sweep import Scored, Sweep
from fedpersonal.evaluation.client_metrics import find_metric, find_metrics, lower_is_better
from fedpersonal.evaluation.guess import best_guess
from fedpersonal.files import write_csv, write_text
from fedpersonal.report.comparison import FEWEST, MOST, compare_runs
from fedpersonal.report.run import OUR_TASKS, RunData, label, read_run
from fedpersonal.tasks.idle import idle_options

_DIGITS = 4
# Columns and rows.
Table = tuple[list[str], list[list[str]]]


def write_page(sweep: Sweep, ranked: Sequence[Scored], binary: str) -> str:
    """Writes `sweep.md`, `sweep.html` and `sweep.csv`, and returns the first.

    Args:
        sweep: What was asked.
        ranked: What `Sweep.run` has returned.
        binary: The program whose options they are.
    """
    text = _page(sweep, ranked, binary)
    write_text(sweep.output_dir / "sweep.md", text)
    write_text(sweep.output_dir / "sweep.html", _html(sweep, ranked, binary))
    write_csv(sweep.output_dir / "sweep.csv", _records(sweep, ranked))
    return text


def compare(sweep: Sweep, ranked: Sequence[Scored]) -> list[pathlib.Path]:
    """Writes `compare.html`, and its rows as CSV, of the tested runs, the chosen setting's first.

    Returns:
        The files; none where a single run was tested.
    """
    # What draws is imported when all else is done.
    from fedpersonal.report.comparison_page import write_page

    folders, metric = _compared(sweep, ranked)
    if len(folders) < FEWEST:
        return []
    comparison = compare_runs(folders, metric=metric)
    return write_page(comparison, sweep.output_dir / "compare.html")


def _compared(sweep: Sweep, ranked: Sequence[Scored]) -> tuple[list[pathlib.Path], str | None]:
    """Returns the folders of tested runs that are compared, and the metric they are judged by."""
    runs = [trial.run for one in sweep.tested(ranked)[:MOST] for trial in one.trials]
    metric = sweep.metric if sweep.metric in runs[0].record.per_client else None
    return [run.path for run in runs], metric


def _page(sweep: Sweep, ranked: Sequence[Scored], binary: str) -> str:
    best = ranked[0]
    declared = sweep.task.options.declarations()
    values = {**sweep.shared, **best.setting, "seed": sweep.seeds[0]}
    # A preset may have set options that the method does not read, and nobody may type.
    unread = idle_options(sweep.task, sweep.task.options(**values))
    read = {name: value for name, value in values.items() if name not in unread}
    flags = [flag for name, value in read.items() for flag in declared[name].flags(value)]
    flags.append(f"--output_dir={sweep.output_dir / 'chosen'}")
    is_ours = sweep.task.module.startswith(OUR_TASKS)
    program = ["fedpersonal", binary] if is_ours else ["python", "-m", sweep.task.module]
    command = shlex.join([*program, *flags])
    parts = [
        f"# Sweep of {binary}",
        _about(sweep),
        _markdown(*_settings(sweep, ranked)),
        f"Chosen: **{values_text(best.setting)}**. {_next_best(sweep, ranked)}".rstrip(),
        *_guessed(sweep, best),
        "Its command, to be given where that of the sweep was:",
        f"    {command}",
        f"Tested once, after the choice, {_over(sweep)}:",
        _markdown(*_tested(sweep, ranked)),
        *_verdicts(sweep, ranked),
        *_diverged(ranked),
    ]
    return "\n\n".join(parts)


def _html(sweep: Sweep, ranked: Sequence[Scored], binary: str) -> str:
    """Returns the page to look at, which has no path of this machine."""
    # What draws is imported when all else is done.
    from fedpersonal.report.page import command, render

    # Most have not been tested: a failure is what lets such a run be read.
    runs = {
        values_text(one.setting): [read_run(t.run.path, failure="not tested") for t in one.trials]
        for one in ranked
        if not one.diverged
    }
    best, metrics = next(iter(runs.values()))[0], _tested(sweep, ranked)[0][1:]
    return render(
        "sweep.jinja",
        data={"curves": {"panels": _curves(sweep.chosen_by, runs)}},
        title=f"Sweep of {binary}: {len(sweep.settings)} settings",
        predicts=best.predicts,
        about=_about(sweep),
        chosen=values_text(ranked[0].setting),
        sentences=[_next_best(sweep, ranked), *_guessed(sweep, ranked[0])],
        settings=_settings(sweep, ranked),
        over=_over(sweep),
        tested=_tested(sweep, ranked),
        verdicts=_verdicts(sweep, ranked),
        diverged=_diverged(ranked),
        meanings={n: best.meaning(n) for n in metrics if best.meaning(n)},
        command=command(best),
    )


def _curves(metric: str, runs: Mapping[str, Sequence[RunData]]) -> list[dict[str, Any]]:
    """Returns what `curves.js` draws: a line for each of the best settings."""
    from fedpersonal.report.charts import curve
    from fedpersonal.report.pictures import SERIES

    first, panels = next(iter(runs.values()))[0], []
    names = [f"eval/{metric}", *(n for n in first.round_metrics if n.startswith("eval/"))]
    for name in dict.fromkeys(names):
        series = []
        for place, (setting, of_setting) in enumerate([*runs.items()][: len(SERIES)]):
            if all(name in run.round_metrics for run in of_setting):
                drawn = curve(of_setting, name)
                for end in ("low", "high"):  # Bands of seeds, which settings share, hide lines.
                    drawn.pop(end, None)
                series.append({"name": setting, "color": f"series-{place}", **drawn})
        last = name.rpartition("/")[2]
        head = {"label": f"{label(last)}, validation", "meaning": first.meaning(last)}
        if series:
            panels.append({**head, "lower": lower_is_better(last), "series": series})
    return panels


def _over(sweep: Sweep) -> str:
    number = len(sweep.seeds)
    return f"over {number} seeds" if number > 1 else "of a single seed"


def _about(sweep: Sweep) -> str:
    return (
        f"{len(sweep.settings)} settings, {_over(sweep)}, all with the split of --split_seed="
        f"{sweep.shared['split_seed']}. A setting "
        f"is chosen by the mean {sweep.chosen_by} of validation clients after the last round; test "
        "clients were not looked at before. No run was stopped early."
    )


def _settings(sweep: Sweep, ranked: Sequence[Scored]) -> Table:
    names = list(ranked[0].setting)
    rows = [
        [*(value_text(one.setting[name]) for name in names), _cell(one.scores), mark]
        for one, mark in zip(ranked, ["chosen", *[""] * len(ranked)])
    ]
    return [*names, f"validation {sweep.chosen_by}", ""], rows


def _markdown(columns: list[str], rows: list[list[str]]) -> str:
    return tabulate.tabulate(rows, columns, tablefmt="github", disable_numparse=True)


def _diverged(ranked: Sequence[Scored]) -> list[str]:
    return [
        f"Diverged, so not chosen: {values_text(one.setting)} ({one.diverged})"
        for one in ranked
        if one.diverged
    ]


def _next_best(sweep: Sweep, ranked: Sequence[Scored]) -> str:
    """Says by how much the chosen setting leads, and whether it does with every seed."""
    if len(ranked) < 2 or ranked[1].diverged:
        return ""
    best, second = ranked[:2]
    sign = -1 if lower_is_better(sweep.chosen_by) else 1
    leads = [sign * (ours - theirs) for ours, theirs in zip(best.scores, second.scores)]
    ahead = sum(lead > 0 for lead in leads)
    told = f"It leads the next best, {values_text(second.setting)}, by {_cell(leads)}"
    if len(leads) == 1:
        return f"{told} with a single seed: another seed may choose the other."
    if ahead == len(leads):
        return f"{told}, with each of the {ahead} seeds."
    return f"{told}, but with {ahead} of {len(leads)} seeds only: other seeds may choose the other."


def _guessed(sweep: Sweep, best: Scored) -> list[str]:
    """Says whether the chosen setting beats the best guess on the same validation clients."""
    guess = sweep.guess(best)
    if not guess:
        return []
    sign = -1 if lower_is_better(sweep.chosen_by) else 1
    beats = sign * (best.mean - guess[1]) > 0
    said = "the chosen setting beats it" if beats else "no setting beats it"
    return [
        f"A guess that trains no model, {guess[0]}, has {sweep.chosen_by} {guess[1]:.{_DIGITS}f} "
        f"on the same validation clients: {said}."
    ]


def _tested(sweep: Sweep, ranked: Sequence[Scored]) -> Table:
    tested = sweep.tested(ranked)
    told = tested[0].trials[0].run.summary["test"]
    metrics = find_metrics(sweep.task.metrics, told)
    rows = [[values_text(one.setting), *_test_cells(one, metrics)] for one in tested]
    of_tests = [trial.run.summary["test"] for trial in tested[0].trials]
    best = [best_guess(of_tests, name) for name in metrics]
    if any(best):
        rows.append(["best guess", *(f"{g[1]:.{_DIGITS}f}, {g[0]}" if g else "–" for g in best)])
    return ["", *metrics], rows


def _verdicts(sweep: Sweep, ranked: Sequence[Scored]) -> list[str]:
    """Returns how the tested settings differ on test clients; nothing of a single one."""
    folders, metric = _compared(sweep, ranked)
    if len(sweep.tested(ranked)) == 1:
        return []
    # What compares is imported when all else is done.
    from fedpersonal.report.comparison_page import verdicts

    about = "The first row is the chosen setting; the others are there for comparison."
    return [about, *verdicts(compare_runs(folders, metric=metric))]


def _test_cells(scored: Scored, metrics: Sequence[str]) -> list[str]:
    tests = [trial.run.summary["test"] for trial in scored.trials]
    return [_cell([test[name] for test in tests]) for name in metrics]


def _cell(values: Sequence[float]) -> str:
    return Cell(tuple(values)).text(_DIGITS) if values else "diverged"


def _records(sweep: Sweep, ranked: Sequence[Scored]) -> list[dict[str, Any]]:
    """Returns a row a run: its setting, its validation, its test where it was tested."""
    records = []
    tested = sweep.tested(ranked)
    told = tested[0].trials[0].run.summary["test"]
    names = [name for name in sweep.task.metrics if find_metric(name, told)]
    metrics = [v.metrics for one in ranked for v in [one.trials[0].validation] if not v.diverged]
    for place, one in enumerate(ranked, start=1):
        for trial in one.trials:
            validation = trial.validation
            test = trial.run.summary["test"] if one in tested else {}
            records.append(
                {
                    "place": "" if one.diverged else place,
                    **{name: value_text(value) for name, value in one.setting.items()},
                    "seed": trial.seed,
                    **{f"validation_{n}": validation.metrics.get(n, "") for n in metrics[0]},
                    **{f"test_{n}": test.get(find_metric(n, test), "") for n in names},
                    "diverged": validation.diverged,
                    "run": trial.run.path.relative_to(sweep.output_dir),
                }
            )
    return records

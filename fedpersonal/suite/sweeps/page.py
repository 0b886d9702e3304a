"""The files of a sweep: a page, a CSV file of runs, and the command of the chosen setting."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import tabulate

from fedpersonal.evaluation.baselines import strongest_baseline
from fedpersonal.evaluation.client_metrics import find_metric, find_metrics, lower_is_better
from fedpersonal.files import write_csv, write_text
from fedpersonal.report.comparison import FEWEST, MOST, compare_runs
from fedpersonal.report.run import OUR_TASKS, RunData, label, read_run
from fedpersonal.suite.papers.table import Cell
from fedpersonal.suite.sweeps.grid import value_text, values_text
from fedpersonal.suite.sweeps.sweep import Scored, Sweep
from fedpersonal.suite.tasks.idle import idle_options

_DIGITS = 4
# Columns and rows.
Table = tuple[list[str], list[list[str]]]


def write_page(sweep: Sweep, ranked: Sequence[Scored], binary: str) -> str:
    """Writes `sweep.md`, `sweep.html` and `sweep.csv`, and returns the text of the first.

    Args:
        sweep: The sweep.
        ranked: The result of `Sweep.run`.
        binary: The program of the options.
    """
    text = _page(sweep, ranked, binary)
    write_text(sweep.output_dir / "sweep.md", text)
    write_text(sweep.output_dir / "sweep.html", _html(sweep, ranked, binary))
    write_csv(sweep.output_dir / "sweep.csv", _records(sweep, ranked))
    return text


def compare(sweep: Sweep, ranked: Sequence[Scored]) -> list[pathlib.Path]:
    """Writes `compare.html`, and its rows as CSV: tested runs, those of the chosen setting first.

    Returns:
        The files; none if only a single run was tested.
    """
    # Modules that draw are imported last.
    from fedpersonal.report.comparison_page import write_page

    folders, metric = _compared(sweep, ranked)
    if len(folders) < FEWEST:
        return []
    comparison = compare_runs(folders, metric=metric)
    return write_page(comparison, sweep.output_dir / "compare.html")


def _compared(sweep: Sweep, ranked: Sequence[Scored]) -> tuple[list[pathlib.Path], str | None]:
    """Returns the folders of the tested runs to compare, and the main metric."""
    runs = [trial.run for one in sweep.tested(ranked)[:MOST] for trial in one.trials]
    metric = sweep.metric if sweep.metric in runs[0].record.per_client else None
    return [run.path for run in runs], metric


def _page(sweep: Sweep, ranked: Sequence[Scored], binary: str) -> str:
    best = ranked[0]
    declared = sweep.task.options.declarations()
    values = {**sweep.shared, **best.setting, "seed": sweep.seeds[0]}
    # A preset may have set options that the method ignores; typing them is an error.
    ignored = idle_options(sweep.task, sweep.task.options(**values))
    used = {name: value for name, value in values.items() if name not in ignored}
    flags = [flag for name, value in used.items() for flag in declared[name].flags(value)]
    flags.append(f"--output_dir={sweep.output_dir / 'chosen'}")
    is_ours = sweep.task.module.startswith(OUR_TASKS)
    program = ["fedpersonal", binary] if is_ours else ["python", "-m", sweep.task.module]
    command = shlex.join([*program, *flags])
    parts = [
        f"# Sweep of {binary}",
        _about(sweep),
        _markdown(*_settings(sweep, ranked)),
        f"Chosen: **{values_text(best.setting)}**. {_next_best(sweep, ranked)}".rstrip(),
        *_compare_with_baseline(sweep, best),
        "The command of its run, for the folder in which the sweep was started:",
        f"    {command}",
        f"Tested once, after the choice, {_over(sweep)}:",
        _markdown(*_tested(sweep, ranked)),
        *_verdicts(sweep, ranked),
        *_diverged(ranked),
    ]
    return "\n\n".join(parts)


def _html(sweep: Sweep, ranked: Sequence[Scored], binary: str) -> str:
    """Returns the HTML page, which has no path of this machine."""
    # Modules that draw are imported last.
    from fedpersonal.report.page import command, render

    # Most runs have not been tested; only with a failure can such a run be read.
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
        prediction=best.prediction,
        about=_about(sweep),
        chosen=values_text(ranked[0].setting),
        sentences=[_next_best(sweep, ranked), *_compare_with_baseline(sweep, ranked[0])],
        settings=_settings(sweep, ranked),
        over=_over(sweep),
        tested=_tested(sweep, ranked),
        verdicts=_verdicts(sweep, ranked),
        diverged=_diverged(ranked),
        meanings={n: best.meaning(n) for n in metrics if best.meaning(n)},
        command=command(best),
    )


def _curves(metric: str, runs: Mapping[str, Sequence[RunData]]) -> list[dict[str, Any]]:
    """Returns the panels of `curves.js`, with a line for each of the best settings."""
    from fedpersonal.report.charts import curve
    from fedpersonal.report.pictures import SERIES

    first, panels = next(iter(runs.values()))[0], []
    names = [f"eval/{metric}", *(n for n in first.round_metrics if n.startswith("eval/"))]
    for name in dict.fromkeys(names):
        series = []
        for place, (setting, setting_runs) in enumerate([*runs.items()][: len(SERIES)]):
            if all(name in run.round_metrics for run in setting_runs):
                points = curve(setting_runs, name)
                for end in ("low", "high"):  # Bands over seeds would hide the lines of settings.
                    points.pop(end, None)
                series.append({"name": setting, "color": f"series-{place}", **points})
        last = name.rpartition("/")[2]
        head = {"label": f"{label(last)}, validation", "meaning": first.meaning(last)}
        if series:
            panels.append({**head, "lower": lower_is_better(last), "series": series})
    return panels


def _over(sweep: Sweep) -> str:
    number = len(sweep.seeds)
    return f"over {number} seeds" if number > 1 else "with a single seed"


def _about(sweep: Sweep) -> str:
    return (
        f"{len(sweep.settings)} settings, {_over(sweep)}, all with the split of --split_seed="
        f"{sweep.shared['split_seed']}. The "
        f"choice is by the mean {sweep.chosen_by} of validation clients after the last round; test "
        "clients were not used for it. No run was stopped early."
    )


def _settings(sweep: Sweep, ranked: Sequence[Scored]) -> Table:
    names = list(ranked[0].setting)
    rows = [
        [*(value_text(one.setting[name]) for name in names), _cell(one.scores), mark]
        for one, mark in zip(ranked, ["chosen", *[""] * len(ranked)])
    ]
    return [*names, f"validation {sweep.chosen_by}", "choice"], rows


def _markdown(columns: list[str], rows: list[list[str]]) -> str:
    return tabulate.tabulate(rows, columns, tablefmt="github", disable_numparse=True)


def _diverged(ranked: Sequence[Scored]) -> list[str]:
    return [
        f"Diverged, so not chosen: {values_text(one.setting)} ({one.diverged})"
        for one in ranked
        if one.diverged
    ]


def _next_best(sweep: Sweep, ranked: Sequence[Scored]) -> str:
    """Returns a sentence on the lead of the chosen setting, and on its lead with each seed."""
    if len(ranked) < 2 or ranked[1].diverged:
        return ""
    best, second = ranked[:2]
    sign = -1 if lower_is_better(sweep.chosen_by) else 1
    leads = [sign * (ours - theirs) for ours, theirs in zip(best.scores, second.scores)]
    ahead = sum(lead > 0 for lead in leads)
    text = f"It leads the next best, {values_text(second.setting)}, by {_cell(leads)}"
    if len(leads) == 1:
        return f"{text} with a single seed; the choice may differ with another seed."
    if ahead == len(leads):
        return f"{text}, with each of the {ahead} seeds."
    seeds = f"{ahead} of {len(leads)} seeds"
    return f"{text}, but with only {seeds}; the choice may differ with others."


def _compare_with_baseline(sweep: Sweep, best: Scored) -> list[str]:
    """Returns a sentence that compares the chosen setting with the strongest baseline, if any."""
    baseline = sweep.baseline(best)
    if not baseline:
        return []
    sign = -1 if lower_is_better(sweep.chosen_by) else 1
    beats = sign * (best.mean - baseline[1]) > 0
    outcome = "the chosen setting beats it" if beats else "no setting beats it"
    return [
        f"The strongest baseline, {baseline[0]}, reaches {sweep.chosen_by} "
        f"{baseline[1]:.{_DIGITS}f} on the same validation clients: {outcome}."
    ]


def _tested(sweep: Sweep, ranked: Sequence[Scored]) -> Table:
    tested = sweep.tested(ranked)
    metrics = find_metrics(sweep.task.metrics, tested[0].trials[0].run.summary["test"])
    rows = [[values_text(one.setting), *_test_cells(one, metrics)] for one in tested]
    tests = [trial.run.summary["test"] for trial in tested[0].trials]
    best = [strongest_baseline(tests, name) for name in metrics]
    if any(best):
        cells = (f"{one[1]:.{_DIGITS}f}, {one[0]}" if one else "–" for one in best)
        rows.append(["strongest baseline", *cells])
    return ["setting", *metrics], rows


def _verdicts(sweep: Sweep, ranked: Sequence[Scored]) -> list[str]:
    """Returns sentences on the differences of tested settings; none for a single setting."""
    folders, metric = _compared(sweep, ranked)
    if len(sweep.tested(ranked)) == 1:
        return []
    # Modules that compare are imported last.
    from fedpersonal.report.comparison_page import verdicts

    about = "The first row is the chosen setting; other settings are for comparison."
    return [about, *verdicts(compare_runs(folders, metric=metric))]


def _test_cells(scored: Scored, metrics: Sequence[str]) -> list[str]:
    tests = [trial.run.summary["test"] for trial in scored.trials]
    return [_cell([test[name] for test in tests]) for name in metrics]


def _cell(values: Sequence[float]) -> str:
    return Cell(tuple(values)).text(_DIGITS) if values else "diverged"


def _records(sweep: Sweep, ranked: Sequence[Scored]) -> list[dict[str, Any]]:
    """Returns one row per run: its setting, its validation, and its test, if it was tested."""
    records = []
    tested = sweep.tested(ranked)
    first_test = tested[0].trials[0].run.summary["test"]
    names = [name for name in sweep.task.metrics if find_metric(name, first_test)]
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

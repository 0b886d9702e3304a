"""The metrics that runs have in common, and how clients' values make each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.errors import UserError, listed, quoted
from fedpersonal.evaluation.client_metric import ClientMetric
from fedpersonal.evaluation.direction import find_metric, lower_is_better, main_metric
from fedpersonal.report.compared_runs import HAS_EXAMPLES, ComparedRun
from fedpersonal.report.run_data import is_number

# How a metric of one client becomes a mean that adds up over clients, and back.
_MEANS: Mapping[str, Mapping[str, Any]] = {
    "rmse": {"to_mean": np.square, "finalize": np.sqrt},
    "perplexity": {"to_mean": np.log, "finalize": np.exp},
}
# Figures of `summary.json` are the same numbers, but for rounding.
_ROUNDING = 1e-5


def common_metrics(
    runs: Sequence[ComparedRun], *, chosen: str | None = None
) -> dict[str, ClientMetric]:
    """Returns the metrics that all runs have, the main one first, and how clients make each.

    Args:
        runs: The runs.
        chosen: The main metric; None for the task's first, or the usual one.

    Raises:
        UserError: If they have none in common, or one lacks that metric.
    """
    named = [_metrics_of(run) for run in runs]
    shared = [name for name in named[0] if all(name in names for names in named)]
    for run, names in zip(runs, named):
        where = f"{run.folder} has no metric"
        if chosen is not None and chosen not in names:
            raise UserError(f"{where} {quoted(chosen)}; it has {listed(names)}.")
        # Losses alone may be of any kind.
        if not {*shared} - {"loss"} and names != named[0]:
            raise UserError(
                f"{where} in common with {runs[0].folder}: {listed(names)} and {listed(named[0])}."
            )
    task = runs[0].data.task
    found = (find_metric(name, shared) for name in (task.metrics if task else ()))
    usual = [name for name in found if name]
    first = chosen or next(iter(usual), main_metric(shared))
    shared.sort(key=lambda name: (name != first, name not in usual, name == "loss"))
    return {name: _find_metric(name, runs) for name in shared}


def pooled_metrics(runs: Sequence[ComparedRun]) -> list[str]:
    """Returns the metrics that all runs tell of all clients, and not of each, such as `auc`.

    Those that their task prints come first.
    """
    task = runs[0].data.task
    usual = list(task.metrics) if task else []
    of_clients = {name for run in runs for name in _metrics_of(run)}
    return [
        name
        for name in dict.fromkeys([*usual, *runs[0].test])
        if name not in of_clients
        and not name.startswith("num_")
        and lower_is_better(name) is not None
        and all(is_number(run.test.get(name)) for run in runs)
    ]


def _metrics_of(run: ComparedRun) -> list[str]:
    """Returns the metrics that a run has of all clients and of each."""
    numbers = run.clients.select_dtypes("number").columns
    test = run.test
    return [
        name
        for name, value in test.items()
        if isinstance(value, (int, float))
        and not name.startswith("num_")
        and not name.endswith("_before")
        and (f"{name}_after" in numbers or name in numbers)
    ]


def _find_metric(name: str, runs: Sequence[ComparedRun]) -> ClientMetric:
    """Returns how clients' values make the metric of all, as the summaries have it.

    Which weights do is found by trying; where none do, since `per_client.csv` lacks them, it is the
    plain mean over clients.
    """
    after = f"{name}_after"
    column = after if all(after in run.clients for run in runs) else name
    numbers = [n for n in runs[0].clients if n.startswith("num_")]
    weights = [None, *(n for n in numbers if all(n in run.clients for run in runs))]
    for weight in weights:
        metric = ClientMetric(column, weight, **_MEANS.get(name, {}))
        if all(_is_that_of_the_summary(name, metric, run) for run in runs):
            return metric
    return ClientMetric(column, HAS_EXAMPLES)


def _is_that_of_the_summary(name: str, metric: ClientMetric, run: ComparedRun) -> bool:
    rows = run.rows(metric.weights).reset_index()
    with np.errstate(all="ignore"):  # Clients without a number do not count.
        overall = metric.overall(rows[rows[metric.column].notna()])
    return bool(np.isclose(overall, run.test[name], rtol=_ROUNDING, atol=_ROUNDING**2))

"""Runs side by side: methods against each other on the same clients, seed by seed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import pandas as pd

from fedpersonal.errors import UserError, escaped, listed, one_line, quoted
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.client_metrics import (
    ClientMetric,
    find_metrics,
    lower_is_better,
    main_metric,
    paired_difference,
)
from fedpersonal.evaluation.guess import best_guess
from fedpersonal.report.pictures import SERIES
from fedpersonal.report.run import RunData, is_number, option_text, read_run, shown
from fedpersonal.runs.record import TRAINING

# Of so many runs at least, and as many methods as pages have colours.
FEWEST, MOST = 2, len(SERIES)
# These say where a run computes and keeps things, not what it does; or follow from its seed.
_ELSEWHERE = frozenset(
    "seed output_dir runtime ray_address rounds_per_checkpoint shards data_dir "
    "cache_dir base_model_dir initial_local_values".split()
)
_Folder = Union[str, os.PathLike]
# Folders; or by the name of a method those of its runs, under None those without a name.
Folders = Union[Sequence[_Folder], Mapping[Optional[str], Union[_Folder, Sequence[_Folder]]]]
# The column of clients that have examples to predict, 1.0 or 0.0.
_HAS_EXAMPLES = "has_examples"
# Figures of `summary.json` are the same numbers, but for rounding.
_ROUNDING = 1e-5


@dataclasses.dataclass(frozen=True, eq=False)
class ComparedMethod:
    """Runs that differ by their seed alone.

    Attributes:
        name: The name that its runs were given; or else its method's, with the options that tell it
            from others of that name.
        runs: The runs by seed, in ascending order.
        seeds: The seeds that all compared methods have.
    """

    name: str
    runs: Mapping[int | None, RunData]
    seeds: Sequence[int | None]

    @property
    def first(self) -> RunData:
        """One of its runs: those of other seeds have the same options."""
        return next(iter(self.runs.values()))

    @property
    def paired(self) -> list[RunData]:
        """Its runs of the seeds that all have."""
        return [self.runs[seed] for seed in self.seeds]

    def values(self, metric: str) -> np.ndarray:
        """Returns a metric of each of its runs, as `summary.json` has it."""
        return np.array([float(run.test[metric]) for run in self.runs.values()])

    def of_clients(self, metric: ClientMetric) -> pd.Series:
        """Returns each client's metric, the mean over the paired seeds that test it, by its name.

        It is NaN where one of them is.
        """
        values = pd.concat([_counting(run, metric)[metric.column] for run in self.paired])
        means = values.groupby(level=0).mean()
        return means.where(values.notna().groupby(level=0).all())


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Methods, and their differences from the first one, the baseline.

    Attributes:
        methods: The methods, the baseline first.
        metrics: The metrics by name, the main one first, and how clients make each.
        pooled: Metrics that all runs tell of all clients, and not of each.
        rows: The rows of `compare`, by method and metric.
    """

    methods: Sequence[ComparedMethod]
    metrics: Mapping[str, ClientMetric]
    pooled: Sequence[str]
    rows: Mapping[tuple[str, str], Mapping[str, Any]]

    @property
    def metric(self) -> str:
        """The main metric."""
        return next(iter(self.metrics))

    def table(self) -> pd.DataFrame:
        """Returns the rows of `compare`."""
        return pd.DataFrame(list(self.rows.values()))


def compare_runs(folders: Folders, *, metric: str | None = None) -> Comparison:
    """Compares finished runs, those of one method but for the seed together.

    Args:
        folders: Run folders, of at most 10 methods, the first of which is the baseline.
        metric: The main metric; None for the first that all runs have.

    Raises:
        UserError: If a folder is no finished run's or is given twice, runs of one name differ by
            more than the seed, methods are not tested on the same examples of the same clients, or
            runs have no metric in common, or not that metric.
    """
    methods = _read_methods(folders)
    runs = [run for method in methods for run in method.runs.values()]
    metrics, pooled = _find_metrics(runs, metric)
    rows = {}
    for method in methods:
        for name in (*metrics, *pooled):
            values = method.values(name)
            row = {
                "method": method.name,
                "metric": name,
                "better": {True: "lower", False: "higher", None: ""}[lower_is_better(name)],
                "weighting": _weighting(metrics[name]) if name in metrics else "",
                "num_seeds": len(values),
                "value": values.mean(),
                "value_sd": _deviation(values),
            }
            guess = best_guess([run.test for run in methods[0].paired], name)
            if guess:
                row.update(guess=guess[0], guess_value=guess[1])
            if name in metrics and method is not methods[0]:
                row.update(_difference(name, metrics[name], method, methods[0]))
            rows[method.name, name] = row
    return Comparison(methods, metrics, pooled, rows)


def compare(folders: Folders, *, metric: str | None = None) -> pd.DataFrame:
    """Compares finished runs and returns a row a method and metric, the baseline's first.

    Args:
        folders: The folders of commands' runs, or of programs' that `TrainedModel.test` has tested.
            Runs that differ by their seed alone are one method, of at most 10; that of the first
            folder is the baseline. Names are given as `{"FedPer": ["runs/a", "runs/b"]}`.
        metric: The metric whose rows come first; None for the first that all runs have.

    Returns:
        The columns: `method`, `metric`, `better` (higher, lower or not known), `weighting`,
        `num_seeds`, `value` and `value_sd` over seeds; `guess` and `guess_value`, the best guess
        that trains no model, where runs have any; and for methods but the baseline `difference`,
        `low` and `high` (95 %, over clients; none of fewer than six), `difference_sd` over seeds,
        `within_noise`, how many clients `gained`, `lost` and are the `same`, and percentiles of
        clients' differences.

    Raises:
        UserError: If the runs cannot be compared.
    """
    return compare_runs(folders, metric=metric).table()


def tested_clients(run: RunData) -> pd.Series:
    """Returns how many examples each evaluated client is tested on, by its name."""
    return run.clients[run.clients["num_examples"] > 0].set_index("client")["num_examples"]


def differing_options(runs: Sequence[RunData]) -> dict[str, list[str]]:
    """Returns the options that differ, by name, with each run's value as a page shows it."""
    asked = [_asked(run) for run in runs]
    # What programs train has entries of each method's own, of no use side by side.
    options = {name for run in runs for name in run.options}
    names = [
        name
        for name in dict.fromkeys(name for of_run in asked for name in of_run)
        if name in options or all(name in of_run for of_run in asked)
    ]
    values = {name: [of_run.get(name, "absent") for of_run in asked] for name in names}
    return {
        name: [option_text(name, value) for value in of_runs]
        for name, of_runs in values.items()
        if any(value != of_runs[0] for value in of_runs)
    }


def read_tested(folder: str | os.PathLike) -> RunData:
    """Returns a finished run that has evaluated clients.

    Raises:
        UserError: If the folder is that of no such run.
    """
    run = read_run(folder)
    clients, path = run.clients, run.path / "per_client.csv"
    if not run.test or not len(clients):
        raise UserError(f"{run.path} has no evaluated clients to compare.")
    examples, names = clients.get("num_examples"), clients.get("client")
    if examples is None or examples.dtype.kind not in "iuf" or not (examples > 0).any():
        raise UserError(f"{path} is damaged: nobody has examples.")
    if names is None or names.duplicated().any():
        raise UserError(f"{path} is damaged: see its clients' names.")
    clients = clients.assign(**{_HAS_EXAMPLES: (examples > 0).astype(float)})
    return dataclasses.replace(run, clients=clients)


def _asked(run: RunData) -> dict[str, Any]:
    """Returns the options that tell a run from others, of a program also what it trains."""
    asked = {**run.config.get(TRAINING, {}), **run.options}
    return {k: v for k, v in asked.items() if k.rpartition(".")[2] not in _ELSEWHERE}


def _read_methods(folders: Folders) -> list[ComparedMethod]:
    """Reads runs and puts the seeds of each method together, in the order of the folders."""
    named = folders if isinstance(folders, Mapping) else {None: folders}
    pairs = [
        (name, folder)
        for name, own in named.items()
        for folder in ([own] if isinstance(own, (str, os.PathLike)) else own)
    ]
    if len(pairs) < FEWEST:
        given = f"{len(pairs)} {'is' if len(pairs) == 1 else 'are'} given"
        raise UserError(f"a comparison is of at least {FEWEST} run folders; {given}.")
    groups: dict[str, dict[int | None, RunData]] = {}
    names: dict[str, str | None] = {}
    for name, folder in pairs:
        run = read_tested(folder)
        key = json.dumps(_asked(run), sort_keys=True) if name is None else f"name {name}"
        names[key], runs = name, groups.setdefault(key, {})
        _check_alike(name, [*runs.values(), run])
        runs[run.config.get("seed")] = run
    if len(groups) > MOST:
        raise UserError(f"a comparison is of at most {MOST} methods; {len(groups)} are given.")
    ordered = [dict(sorted(runs.items(), key=lambda of: of[0] or 0)) for runs in groups.values()]
    seeds = [seed for seed in ordered[0] if all(seed in runs for runs in ordered)]
    firsts = [next(iter(runs.values())) for runs in ordered]
    if not seeds:
        words = [f"{listed([*map(str, r)])} of {_folder(run)}" for r, run in zip(ordered, firsts)]
        raise UserError(
            f"no seed is common to all methods, seeds {'; '.join(words)}: runs of another seed "
            "test other clients."
        )
    for seed in seeds:
        for runs in ordered[1:]:
            _check_match(ordered[0][seed], runs[seed])
    titles = _names(firsts, [*names.values()])
    return [ComparedMethod(title, runs, seeds) for title, runs in zip(titles, ordered)]


def _check_alike(name: str | None, runs: Sequence[RunData]) -> None:
    """Raises a UserError if the last of some runs is one of the others, or no seed of theirs."""
    first, last = runs[0], runs[-1]
    seed = last.config.get("seed")
    if _asked(first) != _asked(last):
        differ = [f"{n} is {' and '.join(v)}" for n, v in differing_options((first, last)).items()]
        why = one_line("; ".join(differ) or "they have other phases or models")
        raise UserError(
            f"{_folder(first)} and {_folder(last)} are both named {quoted(str(name))}, but differ "
            f"by more than the seed: {why}."
        )
    for other in runs[:-1]:
        if other.config.get("seed") == seed:
            raise UserError(
                f"{_folder(other)} and {_folder(last)} are the same run: no option differs, and "
                f"the seed of both is {one_line(seed)}."
            )


def _check_match(*pair: RunData) -> None:
    """Raises a UserError unless two runs are tested on the same examples of the same clients."""
    tested = [tested_clients(run).to_dict() for run in pair]
    data = [run.config.get("data") for run in pair]
    shared = len(tested[0].keys() & tested[1].keys())
    numbers = f"{len(tested[0]):,} and {len(tested[1]):,} clients, of whom {shared:,} are the same"
    must_agree = {
        "they are of two tasks": [run.options.get("task") for run in pair],
        f"their data differ, {one_line(data[0])} and {one_line(data[1])}": data,
        f"they evaluate {numbers}": [of.keys() for of in tested],
        "clients are tested on other numbers of examples": tested,
        "test_labels differ: other examples": [run.summary.get("test_labels") for run in pair],
    }
    for why, (first, second) in must_agree.items():
        if first != second:
            differ = [f"{n} is {' and '.join(v)}" for n, v in differing_options(pair).items()]
            folders = " and ".join(map(_folder, pair))
            raise UserError(f"{folders} cannot be compared: {why} ({one_line('; '.join(differ))}).")


def _folder(run: RunData) -> str:
    return escaped(str(run.path))


def _names(firsts: Sequence[RunData], given: Sequence[str | None]) -> list[str]:
    """Returns a name for each: the given one, or its method's, with options that tell it apart."""
    names: list[str] = []
    for run, own in zip(firsts, given):
        alike = [other for other in firsts if other.method == run.method]
        options = differing_options(alike).items() if own is None else ()
        words = [f"{name}={values[alike.index(run)]}" for name, values in options]
        name = shown(run.method if own is None else own)
        name += f" ({shown(', '.join(words))})" if words else ""
        names.append(f"{name} #{len(names) + 1}" if name in names else name)
    return names


def _counting(run: RunData, metric: ClientMetric) -> pd.DataFrame:
    """Returns the clients that count in a metric, by name: those with a weight, or all."""
    clients = run.clients.set_index("client").sort_index()
    return clients if metric.weights is None else clients[clients[metric.weights] > 0]


def _difference(
    name: str, metric: ClientMetric, method: ComparedMethod, baseline: ComparedMethod
) -> dict[str, Any]:
    """Returns columns of `compare`: a metric less the baseline's, on the same clients.

    A client without a finite number by one of both alone has lost or gained.
    """
    tables: list[list[pd.DataFrame]] = [[], []]
    for pair in zip(method.paired, baseline.paired):
        rows = [_counting(run, metric) for run in pair]
        finite = np.isfinite(rows[0][metric.column]) & np.isfinite(rows[1][metric.column])
        for of_method, table in zip(tables, rows):
            of_method.append(table[finite].reset_index())
    if not all(map(len, tables[0])):
        raise UserError(f"{name}: no client of {method.name} and {baseline.name} has a number.")
    by_seed, mean = paired_difference(tables[0], tables[1], metric)
    ours, others = (of.of_clients(metric) for of in (method, baseline))
    has, had = np.isfinite(ours), np.isfinite(others)
    change = (ours - others)[has & had]
    lower, same = lower_is_better(name), int((change == 0).sum())
    better = int(((change < 0) if lower else (change > 0)).sum())
    gained, lost = better + int((has & ~had).sum()), len(change) - better - same
    lost += int((had & ~has).sum())
    ends = (mean.low, mean.high) if mean.has_interval else (float("nan"), float("nan"))
    return {
        "baseline": baseline.name,
        "paired_seeds": len(by_seed),
        "difference": mean.difference,
        **dict(zip(("low", "high"), ends)),
        "difference_sd": _deviation(by_seed),
        "within_noise": mean.is_within_noise,
        "num_clients": len(change),
        "gained": None if lower is None else gained,
        "lost": None if lower is None else lost,
        "same": same,
        **dict(zip((f"client_p{p}" for p in PERCENTILES), np.percentile(change, PERCENTILES))),
        "left_out": len(has) - len(change),
    }


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def _weighting(metric: ClientMetric) -> str:
    """Returns by what clients weigh in the metric of them all, such as `examples`."""
    if metric.weights in (None, _HAS_EXAMPLES):
        return "all alike"
    return str(metric.weights).removeprefix("num_").replace("_", " ")


def _find_metrics(
    runs: Sequence[RunData], chosen: str | None
) -> tuple[dict[str, ClientMetric], list[str]]:
    """Returns the metrics that all runs have, the main one first, and how clients make each.

    And those that all runs tell of all clients, and none of each, such as `auc`.
    """
    metrics = [_metrics(run) for run in runs]
    common = [name for name in metrics[0] if all(name in of for of in metrics)]
    shared = [name for name in common if all(of[name] for of in metrics)]
    for run, of in zip(runs, metrics):
        # Losses alone may be of any kind.
        is_other = not {*shared} - {"loss"} and of != metrics[0]
        if is_other or (chosen is not None and not of.get(chosen)):
            what = f"metric {quoted(chosen)}" if chosen else f"metric of {_folder(runs[0])}"
            names = listed([name for name, is_of_each in of.items() if is_of_each])
            raise UserError(f"{_folder(run)} has no {what}; it has {names}.")
    if not shared:
        raise UserError(f"{_folder(runs[0])} has no metric of each client to compare.")
    usual = find_metrics(runs[0].task_metrics, shared)
    main = chosen or next(iter(usual), main_metric(shared))
    shared.sort(key=lambda name: (name != main, name not in usual, name == "loss"))
    pooled = [name for name in common if not any(of[name] for of in metrics)]
    pooled = [name for name in pooled if lower_is_better(name) is not None]
    return {name: _client_metric(name, runs) for name in shared}, pooled


def _metrics(run: RunData) -> dict[str, bool]:
    """Returns the metrics that a run tells of all clients, and whether also of each."""
    columns = {*run.clients.select_dtypes("number").columns}
    return {
        name: bool({name, f"{name}_after"} & columns)
        for name, value in run.test.items()
        if is_number(value) and not name.startswith("num_") and not name.endswith("_before")
    }


def _client_metric(name: str, runs: Sequence[RunData]) -> ClientMetric:
    """Returns how clients' values make the metric of all, as the summaries have it.

    Which weights do is found by trying; where none do, since `per_client.csv` lacks them, it is the
    plain mean over clients.
    """
    after = f"{name}_after"
    column = after if all(after in run.clients for run in runs) else name
    numbers = [n for n in runs[0].clients if n.startswith("num_")]
    for weights in (None, *(n for n in numbers if all(n in run.clients for run in runs))):
        metric = ClientMetric.of(name, column, weights)
        if all(_agrees(metric, run, run.test[name]) for run in runs):
            return metric
    return ClientMetric(column, _HAS_EXAMPLES)


def _agrees(metric: ClientMetric, run: RunData, value: float) -> bool:
    rows = _counting(run, metric).reset_index()
    with np.errstate(all="ignore"):  # Clients without a number do not count.
        overall = metric.overall(rows[rows[metric.column].notna()])
    return bool(np.isclose(overall, value, rtol=_ROUNDING, atol=_ROUNDING**2))

"""Comparison of runs: methods on the same clients, paired by seed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import pandas as pd

from fedpersonal.errors import UserError, join_words, one_line, printable, quoted
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.baselines import strongest_baseline
from fedpersonal.evaluation.client_metrics import (
    ClientMetric,
    find_metrics,
    lower_is_better,
    main_metric,
    paired_difference,
)
from fedpersonal.report.pictures import SERIES
from fedpersonal.report.run import RunData, is_number, option_text, read_run, shorten
from fedpersonal.runs.record import TRAINING

# The fewest runs of a comparison, and its most methods: one per colour of a page.
FEWEST, MOST = 2, len(SERIES)
# Options that say where a run computes and stores files, not what it does; or follow from its seed.
_ELSEWHERE = frozenset(
    "seed output_dir runtime ray_address rounds_per_checkpoint shards data_dir "
    "cache_dir base_model_dir initial_local_values".split()
)
_Folder = Union[str, os.PathLike]
# Folders; or folders by the name of their method, with those of unnamed methods under None.
Folders = Union[Sequence[_Folder], Mapping[Optional[str], Union[_Folder, Sequence[_Folder]]]]
# A column that is 1.0 for clients with test examples, and 0.0 for others.
_HAS_EXAMPLES = "has_examples"
# The weighting of metrics that are means over clients.
EQUAL = "equal"
# Tolerance: figures of `summary.json` equal those of clients but for rounding.
_ROUNDING = 1e-5


@dataclasses.dataclass(frozen=True, eq=False)
class ComparedMethod:
    """A method of a comparison: runs that differ only by their seed.

    Attributes:
        name: The name from the caller; otherwise the method's name, with the options that
            distinguish it from other runs of that method.
        runs: The runs by seed, in ascending order.
        seeds: The seeds that all compared methods have.
    """

    name: str
    runs: Mapping[int | None, RunData]
    seeds: Sequence[int | None]

    @property
    def first(self) -> RunData:
        """The first of its runs; runs of other seeds have the same options."""
        return next(iter(self.runs.values()))

    @property
    def paired(self) -> list[RunData]:
        """Its runs of the seeds that all compared methods have."""
        return [self.runs[seed] for seed in self.seeds]

    def values(self, metric: str) -> np.ndarray:
        """Returns a metric of each of its runs, as in `summary.json`."""
        return np.array([float(run.test[metric]) for run in self.runs.values()])

    def client_means(self, metric: ClientMetric) -> pd.Series:
        """Returns each client's metric by its name, averaged over the paired seeds that test it.

        It is NaN if the metric is NaN for one of these seeds.
        """
        values = pd.concat([_counting(run, metric)[metric.column] for run in self.paired])
        means = values.groupby(level=0).mean()
        return means.where(values.notna().groupby(level=0).all())


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Methods and their differences from the first one, the reference.

    Attributes:
        methods: The methods, the reference first.
        metrics: The metrics by name, the main one first, with their definitions by client values.
        pooled: Metrics that all runs report for all clients together, but not for each client.
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
    """Compares finished runs; runs that differ only by their seed form one method.

    Args:
        folders: Run folders, of at most 10 methods, the first of which is the reference.
        metric: The main metric; None for the first that all runs have.

    Raises:
        UserError: If a folder is no finished run's or is repeated, runs of one name differ by
            more than the seed, methods are not tested on the same examples of the same clients, or
            runs have no metric in common, or lack the requested metric.
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
            baseline = strongest_baseline([run.test for run in methods[0].paired], name)
            if baseline:
                row.update(guess=baseline[0], guess_value=baseline[1])
            if name in metrics and method is not methods[0]:
                row.update(_difference(name, metrics[name], method, methods[0]))
            rows[method.name, name] = row
    return Comparison(methods, metrics, pooled, rows)


def compare(folders: Folders, *, metric: str | None = None) -> pd.DataFrame:
    """Compares finished runs and returns one row per method and metric.

    Args:
        folders: Folders of runs of commands, or of programs that called `TrainedModel.test`. Runs
            that differ only by their seed form one method, of at most 10; the method of the first
            folder is the reference. `{"FedPer": ["runs/a", "runs/b"]}` names a method.
        metric: The metric whose rows come first; None for the first that all runs have.

    Returns:
        A table, the reference method first, with the columns `method`, `metric`, `better` (higher,
        lower or empty if unknown), `weighting` (`equal` or what weighs clients), `num_seeds`, and
        `value` and `value_sd` over seeds; `guess` and `guess_value`, the name and the metric of the
        strongest baseline, if runs have baselines; and for all methods but the reference:
        `baseline`, the reference's name; `difference`; `low` and `high` (95 % interval over
        clients; none for fewer than six clients); `difference_sd` over seeds; `within_noise`; the
        numbers of clients that `gained`, `lost` and are the `same`; and percentiles of clients'
        differences.

    Raises:
        UserError: If the runs cannot be compared.
    """
    return compare_runs(folders, metric=metric).table()


def tested_clients(run: RunData) -> pd.Series:
    """Returns the number of test examples of each evaluated client, by its name."""
    return run.clients[run.clients["num_examples"] > 0].set_index("client")["num_examples"]


def differing_options(runs: Sequence[RunData]) -> dict[str, list[str]]:
    """Returns the options that differ, by name, with each run's value as a page shows it."""
    settings = [_settings(run) for run in runs]
    # Descriptions of what user programs train have entries of one method, which compare nothing.
    options = {name for run in runs for name in run.options}
    names = [
        name
        for name in dict.fromkeys(name for values in settings for name in values)
        if name in options or all(name in values for values in settings)
    ]
    by_name = {name: [values.get(name, "absent") for values in settings] for name in names}
    return {
        name: [option_text(name, value) for value in values]
        for name, values in by_name.items()
        if any(value != values[0] for value in values)
    }


def read_tested(folder: str | os.PathLike) -> RunData:
    """Returns a finished run that has evaluated clients.

    Raises:
        UserError: If the folder has no such run.
    """
    run = read_run(folder)
    clients, path = run.clients, run.path / "per_client.csv"
    if not run.test or not len(clients):
        raise UserError(f"{run.path} has no evaluated clients to compare.")
    examples, names = clients.get("num_examples"), clients.get("client")
    if examples is None or examples.dtype.kind not in "iuf" or not (examples > 0).any():
        raise UserError(f"{path} is damaged: no client has examples.")
    if names is None or names.duplicated().any():
        raise UserError(f"{path} is damaged: its clients' names are missing or repeated.")
    clients = clients.assign(**{_HAS_EXAMPLES: (examples > 0).astype(float)})
    return dataclasses.replace(run, clients=clients)


def _settings(run: RunData) -> dict[str, Any]:
    """Returns what distinguishes a run: its options and, of user programs, what it trains."""
    settings = {**run.config.get(TRAINING, {}), **run.options}
    return {k: v for k, v in settings.items() if k.rpartition(".")[2] not in _ELSEWHERE}


def _read_methods(folders: Folders) -> list[ComparedMethod]:
    """Reads runs and groups the seeds of each method, in the order of the folders."""
    by_name = folders if isinstance(folders, Mapping) else {None: folders}
    pairs = [
        (name, folder)
        for name, paths in by_name.items()
        for folder in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)
    ]
    if len(pairs) < FEWEST:
        raise UserError(f"a comparison needs at least {FEWEST} run folders, not {len(pairs)}.")
    groups: dict[str, dict[int | None, RunData]] = {}
    names: dict[str, str | None] = {}
    for name, folder in pairs:
        run = read_tested(folder)
        key = json.dumps(_settings(run), sort_keys=True) if name is None else f"name {name}"
        names[key], runs = name, groups.setdefault(key, {})
        _check_alike(name, [*runs.values(), run])
        runs[run.config.get("seed")] = run
    if len(groups) > MOST:
        raise UserError(f"a comparison has at most {MOST} methods, not {len(groups)}.")
    ordered = [
        dict(sorted(runs.items(), key=lambda item: item[0] or 0)) for runs in groups.values()
    ]
    seeds = [seed for seed in ordered[0] if all(seed in runs for runs in ordered)]
    firsts = [next(iter(runs.values())) for runs in ordered]
    if not seeds:
        words = [
            f"{join_words([*map(str, r)])} of {_folder(run)}" for r, run in zip(ordered, firsts)
        ]
        raise UserError(
            f"the methods have no seed in common, seeds {'; '.join(words)}: runs of another seed "
            "test other clients."
        )
    for seed in seeds:
        for runs in ordered[1:]:
            _check_match(ordered[0][seed], runs[seed])
    titles = _names(firsts, [*names.values()])
    return [ComparedMethod(title, runs, seeds) for title, runs in zip(titles, ordered)]


def _check_alike(name: str | None, runs: Sequence[RunData]) -> None:
    """Checks that the last of several runs is another seed of the same method as the others.

    Raises:
        UserError: If it has other settings, or the same seed as another run.
    """
    first, last = runs[0], runs[-1]
    seed = last.config.get("seed")
    if _settings(first) != _settings(last):
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
    """Checks that two runs are tested on the same examples of the same clients.

    Raises:
        UserError: If they are not.
    """
    tested = [tested_clients(run).to_dict() for run in pair]
    data = [run.config.get("data") for run in pair]
    shared = len(tested[0].keys() & tested[1].keys())
    numbers = f"{len(tested[0]):,} and {len(tested[1]):,} clients, {shared:,} of them in both"
    must_agree = {
        "their tasks differ": [run.options.get("task") for run in pair],
        f"their data differ, {one_line(data[0])} and {one_line(data[1])}": data,
        f"they evaluate {numbers}": [examples.keys() for examples in tested],
        "their clients' numbers of test examples differ": tested,
        "their test examples differ (test_labels)": [
            run.summary.get("test_labels") for run in pair
        ],
    }
    for why, (first, second) in must_agree.items():
        if first != second:
            differ = [f"{n} is {' and '.join(v)}" for n, v in differing_options(pair).items()]
            folders = " and ".join(map(_folder, pair))
            raise UserError(f"{folders} cannot be compared: {why} ({one_line('; '.join(differ))}).")


def _folder(run: RunData) -> str:
    return printable(str(run.path))


def _names(firsts: Sequence[RunData], requested: Sequence[str | None]) -> list[str]:
    """Returns names: those requested, else the method's with the options that distinguish it."""
    names: list[str] = []
    for run, request in zip(firsts, requested):
        alike = [other for other in firsts if other.method == run.method]
        options = differing_options(alike).items() if request is None else ()
        words = [f"{name}={values[alike.index(run)]}" for name, values in options]
        name = shorten(run.method if request is None else request)
        name += f" ({shorten(', '.join(words))})" if words else ""
        names.append(f"{name} #{len(names) + 1}" if name in names else name)
    return names


def _counting(run: RunData, metric: ClientMetric) -> pd.DataFrame:
    """Returns the clients that a metric averages, by name: those with a weight, or all."""
    clients = run.clients.set_index("client").sort_index()
    return clients if metric.weights is None else clients[clients[metric.weights] > 0]


def _difference(
    name: str, metric: ClientMetric, method: ComparedMethod, reference: ComparedMethod
) -> dict[str, Any]:
    """Returns columns of `compare`: a metric minus the reference's, on the same clients.

    A client whose metric is finite for only one of the two methods has gained or lost.
    """
    tables: list[list[pd.DataFrame]] = [[], []]
    for pair in zip(method.paired, reference.paired):
        rows = [_counting(run, metric) for run in pair]
        finite = np.isfinite(rows[0][metric.column]) & np.isfinite(rows[1][metric.column])
        for by_seed_tables, table in zip(tables, rows):
            by_seed_tables.append(table[finite].reset_index())
    if not all(map(len, tables[0])):
        raise UserError(f"{name}: no client of {method.name} and {reference.name} has a number.")
    by_seed, mean = paired_difference(tables[0], tables[1], metric)
    values, reference_values = (one.client_means(metric) for one in (method, reference))
    has, had = np.isfinite(values), np.isfinite(reference_values)
    change = (values - reference_values)[has & had]
    lower, same = lower_is_better(name), int((change == 0).sum())
    better = int(((change < 0) if lower else (change > 0)).sum())
    gained, lost = better + int((has & ~had).sum()), len(change) - better - same
    lost += int((had & ~has).sum())
    ends = (mean.low, mean.high) if mean.has_interval else (float("nan"), float("nan"))
    return {
        "baseline": reference.name,
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
    """Returns the clients' weights in a metric, such as `examples`."""
    if metric.weights in (None, _HAS_EXAMPLES):
        return EQUAL
    return str(metric.weights).removeprefix("num_").replace("_", " ")


def _find_metrics(
    runs: Sequence[RunData], chosen: str | None
) -> tuple[dict[str, ClientMetric], list[str]]:
    """Returns the per-client metrics that all runs have, and the pooled ones.

    Returns:
        The per-client metrics by name, the main one first, with their definitions; and the metrics
        that all runs report for all clients together, but for no single client, such as `auc`.
    """
    metrics = [_metrics(run) for run in runs]
    common = [name for name in metrics[0] if all(name in one for one in metrics)]
    shared = [name for name in common if all(one[name] for one in metrics)]
    for run, has_clients in zip(runs, metrics):
        # A loss does not suffice: losses of two runs may be of different kinds.
        is_other = not {*shared} - {"loss"} and has_clients != metrics[0]
        if is_other or (chosen is not None and not has_clients.get(chosen)):
            missing = f"metric {quoted(chosen)}" if chosen else f"metric of {_folder(runs[0])}"
            names = join_words(
                [name for name, is_per_client in has_clients.items() if is_per_client]
            )
            raise UserError(f"{_folder(run)} has no {missing}; it has {names}.")
    if not shared:
        raise UserError(f"{_folder(runs[0])} has no per-client metric to compare.")
    usual = find_metrics(runs[0].task_metrics, shared)
    main = chosen or next(iter(usual), main_metric(shared))
    shared.sort(key=lambda name: (name != main, name not in usual, name == "loss"))
    pooled = [name for name in common if not any(one[name] for one in metrics)]
    pooled = [name for name in pooled if lower_is_better(name) is not None]
    return {name: _client_metric(name, runs) for name in shared}, pooled


def _metrics(run: RunData) -> dict[str, bool]:
    """Returns the metrics of a run's summary, and whether each also has a value per client."""
    columns = {*run.clients.select_dtypes("number").columns}
    return {
        name: bool({name, f"{name}_after"} & columns)
        for name, value in run.test.items()
        if is_number(value) and not name.startswith("num_") and not name.endswith("_before")
    }


def _client_metric(name: str, runs: Sequence[RunData]) -> ClientMetric:
    """Returns the definition of a summary's metric by clients' values.

    It tries the weights in `per_client.csv` until the result equals the summaries'. If none fits,
    because the file lacks the weights, the metric is the mean over clients.
    """
    after = f"{name}_after"
    column = after if all(after in run.clients for run in runs) else name
    numbers = [n for n in runs[0].clients if n.startswith("num_")]
    for weights in (None, *(n for n in numbers if all(n in run.clients for run in runs))):
        metric = ClientMetric.for_metric(name, column, weights)
        if all(_agrees(metric, run, run.test[name]) for run in runs):
            return metric
    return ClientMetric(column, _HAS_EXAMPLES)


def _agrees(metric: ClientMetric, run: RunData, value: float) -> bool:
    rows = _counting(run, metric).reset_index()
    with np.errstate(all="ignore"):  # Clients without a number do not count.
        overall = metric.overall(rows[rows[metric.column].notna()])
    return bool(np.isclose(overall, value, rtol=_ROUNDING, atol=_ROUNDING**2))

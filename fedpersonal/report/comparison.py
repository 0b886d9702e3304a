"""Methods against each other, client by client: what `experiments.compare` writes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.errors import UserError, listed, quoted
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.client_metrics import (
    ClientMetric,
    find_metric,
    lower_is_better,
    main_metric,
    paired_difference,
)
from fedpersonal.evaluation.guess import best_guess
from fedpersonal.evaluation.statistics import PairedDifference
from fedpersonal.report.compared import (
    HAS_EXAMPLES,
    ComparedMethod,
    ComparedRun,
    read_methods,
)
from fedpersonal.report.run import is_number

# How a metric of one client becomes a mean that adds up over clients, and back.
_MEANS: Mapping[str, Mapping[str, Any]] = {
    "rmse": {"to_mean": np.square, "finalize": np.sqrt},
    "perplexity": {"to_mean": np.log, "finalize": np.exp},
}
# Figures of `summary.json` are the same numbers, but for rounding.
_ROUNDING = 1e-5


@dataclasses.dataclass(frozen=True, eq=False)
class Difference:
    """A method's metric less the baseline's, on the same clients.

    Attributes:
        lower: Whether less of the metric is better; None where nobody knows.
        by_seed: float64 (num_seeds,): the difference of each seed.
        mean: Their mean, with its interval.
        clients: The difference of each client, by name, the mean over the seeds that test it.
        left_out: How many clients' metrics are no finite numbers in both, and are left out.
        broken: How many of these have a number by the baseline alone.
        mended: How many have one by the method alone.
    """

    lower: bool | None
    by_seed: np.ndarray
    mean: PairedDifference
    clients: pd.Series
    left_out: int
    broken: int = 0
    mended: int = 0

    @property
    def percentiles(self) -> np.ndarray:
        """`PERCENTILES` of clients' differences, each client counting once."""
        return np.percentile(self.clients, PERCENTILES)

    def counts(self) -> dict[str, int | None]:
        """Returns how many clients `gained`, `lost` and are the `same`; None where not known.

        Who has no number by one of both methods alone has lost or gained.
        """
        up, down = int((self.clients > 0).sum()), int((self.clients < 0).sum())
        gained, lost = (down, up) if self.lower else (up, down)
        same = len(self.clients) - up - down
        if self.lower is None:
            return {"gained": None, "lost": None, "same": same}
        return {"gained": gained + self.mended, "lost": lost + self.broken, "same": same}


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Methods, and their differences from the first one, the baseline.

    Attributes:
        methods: The methods, the baseline first.
        metrics: The metrics by name, the main one first, and how clients make each.
        differences: For each method but the baseline, by its name, a difference a metric.
        pooled: Metrics that all runs tell of all clients, and not of each.
    """

    methods: Sequence[ComparedMethod]
    metrics: Mapping[str, ClientMetric]
    differences: Mapping[str, Mapping[str, Difference]]
    pooled: Sequence[str] = ()

    @property
    def metric(self) -> str:
        """The main metric."""
        return next(iter(self.metrics))

    def guess(self, metric: str) -> tuple[str, float] | None:
        """Returns the best guess on the examples that all methods are tested on, and its metric."""
        return best_guess([run.test for run in self.methods[0].paired], metric)

    def weighting(self, metric: str) -> str:
        """Returns by what clients weigh in the metric of them all, such as `examples`."""
        if metric in self.pooled:
            return ""
        weights = self.metrics[metric].weights
        if weights in (None, HAS_EXAMPLES):
            return "all alike"
        return str(weights)[4:].replace("_", " ")

    def values(self, method: ComparedMethod, metric: str) -> np.ndarray:
        """Returns the metric of each of a method's runs, as `summary.json` has it."""
        return np.array([float(run.test[metric]) for run in method.runs.values()])

    def table(self) -> pd.DataFrame:
        """Returns the rows of `compare`."""
        rows = []
        for method in self.methods:
            for name in (*self.metrics, *self.pooled):
                values, guess = self.values(method, name), self.guess(name)
                row = {
                    "method": method.name,
                    "metric": name,
                    "better": {True: "lower", False: "higher", None: ""}[lower_is_better(name)],
                    "weighting": self.weighting(name),
                    "num_seeds": len(values),
                    "value": values.mean(),
                    "value_sd": _deviation(values),
                }
                if guess:
                    row.update(guess=guess[0], guess_value=guess[1])
                if name in self.differences.get(method.name, ()):
                    row.update(self._columns(self.differences[method.name][name]))
                rows.append(row)
        return pd.DataFrame(rows)

    def _columns(self, difference: Difference) -> dict[str, Any]:
        return {
            "baseline": self.methods[0].name,
            "paired_seeds": len(difference.by_seed),
            "difference": difference.mean.difference,
            "low": difference.mean.low if difference.mean.has_interval else float("nan"),
            "high": difference.mean.high if difference.mean.has_interval else float("nan"),
            "difference_sd": _deviation(difference.by_seed),
            "within_noise": difference.mean.is_within_noise,
            "num_clients": len(difference.clients),
            **difference.counts(),
            **{f"client_p{p}": value for p, value in zip(PERCENTILES, difference.percentiles)},
            "left_out": difference.left_out,
        }


def compare_runs(folders: Sequence[str | os.PathLike], *, metric: str | None = None) -> Comparison:
    """Compares finished runs, those of one method but for the seed together.

    Args:
        folders: 2 to 10 run folders. The method of the first is the baseline.
        metric: The main metric; None for the first that all runs have.

    Raises:
        UserError: If a folder is no finished run's or is given twice, methods are not tested on the
            same examples of the same clients, or runs have no metric in common, or not that metric.
    """
    methods = read_methods(folders)
    runs = [run for method in methods for run in method.runs.values()]
    metrics = _common_metrics(runs, chosen=metric)
    baseline, *others = methods
    differences = {
        method.name: {
            name: _difference(name, how, method, baseline) for name, how in metrics.items()
        }
        for method in others
    }
    return Comparison(methods, metrics, differences, _pooled_metrics(runs))


def compare(folders: Sequence[str | os.PathLike], *, metric: str | None = None) -> pd.DataFrame:
    """Compares finished runs and returns a row a method and metric, the baseline's first.

    Args:
        folders: 2 to 10 run folders. Runs that differ by their seed alone are one method; that of
            the first folder is the baseline.
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


def client_means(method: ComparedMethod, metric: ClientMetric) -> pd.Series:
    """Returns each client's metric, the mean over the paired seeds that test it, by its name.

    It is NaN where one of them is.
    """
    values = pd.concat([run.rows(metric.weights)[metric.column] for run in method.paired])
    means = values.groupby(level=0).mean()
    return means.where(values.notna().groupby(level=0).all())


def _difference(
    name: str, metric: ClientMetric, method: ComparedMethod, baseline: ComparedMethod
) -> Difference:
    tables: list[list[pd.DataFrame]] = [[], []]
    left_out = broken = mended = 0
    for pair in zip(method.paired, baseline.paired):
        rows = [run.rows(metric.weights) for run in pair]
        ours, others = (np.isfinite(table[metric.column]) for table in rows)
        finite = ours & others
        broken += int((others & ~ours).sum())
        mended += int((ours & ~others).sum())
        left_out += int((~finite).sum())
        for of_method, table in zip(tables, rows):
            of_method.append(table[finite].reset_index())
    if not all(map(len, tables[0])):
        raise UserError(f"{name}: no client of {method.name} and {baseline.name} has a number.")
    by_seed, mean = paired_difference(tables[0], tables[1], metric)
    clients = client_means(method, metric) - client_means(baseline, metric)
    finite = clients[np.isfinite(clients)]
    return Difference(lower_is_better(name), by_seed, mean, finite, left_out, broken, mended)


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def _common_metrics(runs: Sequence[ComparedRun], *, chosen: str | None) -> dict[str, ClientMetric]:
    """Returns the metrics that all runs have, the main one first, and how clients make each."""
    named = [run.metrics for run in runs]
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
    headlines = (find_metric(name, shared) for name in runs[0].usual_metrics)
    usual = [name for name in headlines if name]
    first = chosen or next(iter(usual), main_metric(shared))
    shared.sort(key=lambda name: (name != first, name not in usual, name == "loss"))
    return {name: _client_metric(name, runs) for name in shared}


def _pooled_metrics(runs: Sequence[ComparedRun]) -> list[str]:
    """Returns the metrics that all runs tell of all clients, and not of each, such as `auc`.

    Those that their task prints come first.
    """
    of_clients = {name for run in runs for name in run.metrics}
    return [
        name
        for name in dict.fromkeys([*runs[0].usual_metrics, *runs[0].test])
        if name not in of_clients
        and not name.startswith("num_")
        and lower_is_better(name) is not None
        and all(is_number(run.test.get(name)) for run in runs)
    ]


def _client_metric(name: str, runs: Sequence[ComparedRun]) -> ClientMetric:
    """Returns how clients' values make the metric of all, as the summaries have it.

    Which weights do is found by trying; where none do, since `per_client.csv` lacks them, it is the
    plain mean over clients.
    """
    after = f"{name}_after"
    column = after if all(after in run.clients for run in runs) else name
    numbers = [n for n in runs[0].clients if n.startswith("num_")]
    for weights in (None, *(n for n in numbers if all(n in run.clients for run in runs))):
        metric = ClientMetric(column, weights, **_MEANS.get(name, {}))
        if all(_agrees(metric, run, run.test[name]) for run in runs):
            return metric
    return ClientMetric(column, HAS_EXAMPLES)


def _agrees(metric: ClientMetric, run: ComparedRun, value: float) -> bool:
    rows = run.rows(metric.weights).reset_index()
    with np.errstate(all="ignore"):  # Clients without a number do not count.
        overall = metric.overall(rows[rows[metric.column].notna()])
    return bool(np.isclose(overall, value, rtol=_ROUNDING, atol=_ROUNDING**2))

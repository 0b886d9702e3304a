"""The contents of a finished run's folder, as pages need them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
import math
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.errors import UserError, printable
from fedpersonal.evaluation.baselines import BASELINE_SUFFIX, strongest
from fedpersonal.evaluation.client_metrics import (
    find_metrics,
    lower_is_better,
    main_metric,
    meaning,
)
from fedpersonal.files import damaged
from fedpersonal.model.names import COPY, MIXING
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.record import (
    ABOUT,
    ROUND,
    RunRecord,
    check_numbers,
    check_rounds,
    read_about,
    rounds_of_files,
)
from fedpersonal.runs.validation import is_passes

_LOG = logging.getLogger(__name__)
OUR_TASKS = "fedpersonal.suite.tasks."
# Prefixes of columns that are counts.
_COUNTS = ("num_", ROUND)
_STAGES = ("_before", "_after", BASELINE_SUFFIX)
_BOTH_WAYS = ("broadcast", "aggregate")
_FILES = ("metrics.csv", "summary.json", "per_client.csv", "boundary.json", ABOUT)


@dataclasses.dataclass(frozen=True, eq=False)
class RunData:
    """A finished run; the value of a file that its folder lacks is empty.

    Attributes:
        path: The folder of the run.
        config: The contents of `config.json`: `options`, `seed`, `versions` and, if known, `data`.
        summary: The contents of `summary.json`, which user programs need not have.
        rounds: One row per round: `round`, `seconds` and metrics, such as `eval/rmse`.
        clients: One row per test client: `client`, `num_examples` and metrics.
        boundary: The tensors that crossed: `name`, `direction`, `dtype`, `num_bytes` of each.
        local: The local variables: `name`, `dtype`, `shape`, `num_bytes` of each.
        keeps_local: Whether clients keep local variables from round to round; None if unknown.
        row_names: Names of the rows of embedding tables, by the input that selects the rows, such
            as `item`.
        failure: Why the run ended early, or None.
    """

    path: pathlib.Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    rounds: pd.DataFrame
    clients: pd.DataFrame
    boundary: Sequence[Mapping[str, Any]]
    local: Sequence[Mapping[str, Any]]
    keeps_local: bool | None
    row_names: Mapping[str, Sequence[str]]
    failure: str | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the run by name."""
        return self.config["options"]

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.summary.get("method") or self.options.get("method") or "?")

    @property
    def title(self) -> str:
        """The method and the data set."""
        dataset = self.summary.get("dataset")
        return f"{self.method} on {dataset}" if dataset else self.method

    @property
    def prediction(self) -> str:
        """The title of the task: predicted variable, inputs and clients; empty without a task."""
        return self.task.title(self._title_fields) if self.task else ""

    @property
    def _title_fields(self) -> dict[str, Any]:
        """The options, the counts of the data, and the name of the data set as `dataset`."""
        data = self.config.get("data")
        counts = data if isinstance(data, Mapping) else {}
        return {**self.options, **counts, "dataset": self.summary.get("dataset")}

    @property
    def is_public(self) -> bool:
        """Whether the items and texts of the data are public."""
        return bool(self.task and self.task.is_public(self.options))

    def meaning(self, metric: str) -> str | None:
        """Returns the definition of a metric in words; None if it is unknown."""
        return meaning(metric, self.task.meanings_of(self._title_fields) if self.task else {})

    @property
    def paired_metrics(self) -> list[str]:
        """The per-client metrics with values before and after personalisation."""
        return [name for name in self.client_metrics if f"{name}_before" in self.clients]

    @property
    def client_metrics(self) -> list[str]:
        """The per-client metrics, at least after personalisation."""
        after = [n[: -len("_after")] for n in map(str, self.clients) if n.endswith("_after")]
        single = [str(n) for n in self.clients if not str(n).endswith(_STAGES)]
        numbers = self.clients.select_dtypes("number").columns
        return after + [n for n in single if n in numbers and not n.startswith(_COUNTS)]

    @property
    def main_metric(self) -> str | None:
        """The metric of the verdict: the first of the task's metrics, if possible; or None."""
        paired = self.paired_metrics
        compared = [name for name in self.client_metrics if name + BASELINE_SUFFIX in self.clients]
        usual = find_metrics(self.task_metrics, [*paired, *compared])
        if usual:
            return usual[0]
        return main_metric(compared) or main_metric(paired) or main_metric(self.client_metrics)

    @property
    def starts_untrained(self) -> bool:
        """Whether clients have untrained local variables, not copies, before personalisation."""
        return any(not v["name"].startswith((f"{COPY}/", MIXING)) for v in self.local)

    @property
    def test(self) -> Mapping[str, Any]:
        """The results of the test; empty without a test."""
        return self.summary.get("test") or {}

    @property
    def task_metrics(self) -> Sequence[str]:
        """The metrics that the task prints; empty without a task."""
        return self.task.metrics if self.task else ()

    @functools.cached_property
    def task(self) -> Any:
        """The task of the run; None of user programs, and if the task cannot be imported."""
        module = str(self.options.get("task"))
        try:  # Only our modules are imported; users' modules must be imported already.
            is_ours = module.startswith(OUR_TASKS)
            return importlib.import_module(module).TASK if is_ours else sys.modules[module].TASK
        except (ImportError, AttributeError, KeyError, ValueError):
            return None

    def after(self, metric: str) -> np.ndarray:
        """Returns one of `client_metrics`, float64 (num_clients,), NaN of clients without it."""
        column = f"{metric}_after"
        return self._column(column if column in self.clients else metric)

    def before(self, metric: str) -> np.ndarray | None:
        """Returns a metric before personalisation, as `after` does; None if not evaluated."""
        return self._column(f"{metric}_before") if f"{metric}_before" in self.clients else None

    def baseline(self, metric: str) -> tuple[str, np.ndarray] | None:
        """Returns the strongest baseline's name and each client's metric by it; None without."""
        if metric + BASELINE_SUFFIX not in self.clients:
            return None
        best = strongest(self.test.get("guesses"), metric)
        return best[0] if best else "the baseline", self._column(metric + BASELINE_SUFFIX)

    def _column(self, name: str) -> np.ndarray:
        values = pd.to_numeric(self.clients[name], errors="coerce").to_numpy(np.float64)
        return np.where(np.isfinite(values) & (self.num_examples > 0), values, np.nan)

    @functools.cached_property
    def num_examples(self) -> np.ndarray:
        """Number of test examples of each client, float64 (num_clients,)."""
        if "num_examples" not in self.clients:
            return np.ones(len(self.clients))
        return np.nan_to_num(pd.to_numeric(self.clients["num_examples"], errors="coerce"))

    @property
    def round_metrics(self) -> list[str]:
        """The columns of `rounds` that are metrics with at least one value."""
        return [
            name
            for name in self.rounds.columns
            if name.startswith(("train/", "eval/"))
            and not name.rpartition("/")[2].startswith(_COUNTS)
            and np.isfinite(self.rounds[name]).any()
        ]

    @property
    def bytes_per_round(self) -> float | None:
        """Bytes that all clients of a round receive and send; None if nothing crosses."""
        if self.method.startswith("centralized"):
            return None  # Its clients are batches on a server.
        each = self.bytes_per_client
        clients = self.options.get("clients_per_round")
        trained = (self.config.get("training_data") or {}).get("clients")
        if not each or not isinstance(clients, int):
            return None
        return float(each) * min(clients, trained if isinstance(trained, int) else clients)

    @property
    def bytes_per_client(self) -> int | None:
        """Bytes that a client receives and sends in a round; None if unknown."""
        sizes = [c.get("num_bytes") for c in self.boundary if c.get("direction") in _BOTH_WAYS]
        return None if None in sizes else sum(size or 0 for size in sizes)


def read_run(
    folder: str | os.PathLike, *, failure: str | None = None, only_last: bool = False
) -> RunData:
    """Reads a finished run of a command or of a user program.

    Args:
        folder: The folder of the run.
        failure: Why the run ended early; such a run need not be finished.
        only_last: Whether to leave out files of earlier rounds than the last, as after a failure;
            otherwise they are an error.

    Raises:
        UserError: If the folder is no run's, its run has not ended, or a file is damaged.
    """
    record = RunFolder.read(folder)
    has = {name: (record.path / name).exists() for name in _FILES}
    if failure is None and not only_last:
        check_rounds(record.path)
    else:  # Files that an earlier end of the run wrote lack the rounds since then.
        rounds_by_file = rounds_of_files(record.path)
        last = rounds_by_file.get("metrics.csv")
        if last is not None:
            has = {name: has[name] and rounds_by_file.get(name, last) == last for name in _FILES}

    rounds = record.metrics if has["metrics.csv"] else pd.DataFrame({"round": [], "seconds": []})
    about = read_about(record.path) if has[ABOUT] else {}
    local = about.get("local", {})
    boundary = record.boundary if has["boundary.json"] else []
    privacy = {"privacy": about["privacy"]} if about.get("privacy") else {}
    summary = record.summary if has["summary.json"] else privacy
    whole = {
        "metrics.csv": "seconds" in rounds,
        ABOUT: isinstance(local, dict)
        and local.get("kept") in (None, False, True)
        and _are_variables(local.get("variables", []))
        and _are_names(about.get("names", {})),
        "summary.json": _is_summary(summary),
        "boundary.json": _are_variables(boundary),
    }
    for name, is_whole in whole.items():
        if not is_whole:
            path = record.path / name
            raise UserError(f"{path} is damaged: no version of fedpersonal writes such entries.")
    if not (has["summary.json"] or has[ABOUT] or failure):
        raise UserError(f"{record.path}: its run has not ended; resume it first.")
    clients = pd.DataFrame({"client": []})
    if has["per_client.csv"]:
        clients = record.per_client
        _check_clients(record, clients, summary.get("test", {}))
    return RunData(
        path=record.path,
        config=record.config,
        summary=summary,
        rounds=rounds,
        clients=clients,
        boundary=boundary,
        local=local.get("variables", []),
        keeps_local=local.get("kept"),
        row_names=about.get("names", {}),
        failure=failure,
    )


def _check_clients(record: RunRecord, clients: pd.DataFrame, test: Mapping[str, Any]) -> None:
    """Compares clients' figures with those of all clients in the summary.

    Raises:
        UserError: If a figure is no number, or infinite although that of all clients is a number;
            or if the number of clients with a figure differs from that in the summary.
    """
    path = record.path / "per_client.csv"
    if test and len(clients) and record.per_client_digest is None:
        _LOG.warning(
            "%s cannot be checked: the version that wrote it stored no digest of it in "
            "summary.json.",
            path,
        )
    if "num_examples" not in clients:
        return
    check_numbers(path, clients, "num_examples", finite=True)
    has_examples = clients["num_examples"] > 0
    for name, value in test.items():
        column = f"{name}_after" if f"{name}_after" in clients else name
        if not is_number(value) or name.startswith(_COUNTS) or column not in clients:
            continue
        check_numbers(path, clients, column, finite=True)
        expected = test.get("num_clients_of", {}).get(name, test.get("num_clients"))
        has_number = clients[column].notna()
        if column == name and lower_is_better(name) is None:
            continue  # Summaries do not count the clients with such a column.
        count = int((has_number & has_examples if column != name else has_number).sum())
        if expected is not None and count != expected:
            raise UserError(
                f"{damaged(path)} {count} clients have a number in its column {column}, but "
                f"summary.json counts {expected}."
            )


def _are_variables(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and (entry.get("num_bytes") is None or is_number(entry["num_bytes"]))
        for entry in value
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in value.values()
    )


def _is_summary(value: Mapping[str, Any]) -> bool:
    test = value.get("test", {})
    objects = [test, value.get("privacy", {})]
    if isinstance(test, dict):
        baselines = test.get("guesses", {})
        objects += [baselines, test.get("before", {}), test.get("num_clients_of", {})]
        objects += baselines.values() if isinstance(baselines, dict) else []
    objects.append(value.get("validation", {}))
    alone = value.get("standalone", {"epochs": 1, "metric": "", "validation": {}})
    return all(isinstance(v, dict) for v in objects) and is_passes(alone)


def is_number(value: object) -> bool:
    """Returns whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_LONGEST = 60
_UNITS = ("bytes", "kB", "MB", "GB", "TB")
# Pages are shared, so they hide folders and addresses of machines.
_PATHS, _ADDRESSES = ("_dir", "_file", "_path"), ("_address",)
_ACRONYMS = {"rmse", "mse", "mae", "auc", "hr", "ndcg", "mrr", "oov", "eos"}


def round_numbers(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Returns numbers rounded to significant digits, for JSON; None for those not finite."""
    return [
        float(f"{float(v):.{digits}g}") if math.isfinite(v) else None
        for v in np.asarray(list(values), np.float64)
    ]


def format_number(value: float | None, digits: int = 3) -> str:
    """Returns a number with a number of significant digits, such as 0.914, 1,234 or 1.2e-05."""
    if value is None or not math.isfinite(value):
        return "none" if value is None or math.isnan(value) else str(value)
    if value and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    # The magnitude of the rounded number: 0.09999999 is 0.100.
    magnitude = int(f"{value:.{digits - 1}e}".partition("e")[2])
    text = f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return text.replace("-", "−")


def format_signed(value: float, digits: int = 3) -> str:
    """Returns a number as `format_number` does, with its sign."""
    return ("+" if value > 0 else "") + format_number(value, digits)


def format_percent(share: float) -> str:
    """Returns a share as a percentage."""
    is_near_an_end = 0 < share < 0.01 or 0.99 < share < 1
    return f"{100 * share:.{int(is_near_an_end)}f} %"


def format_size(num_bytes: float | None) -> str:
    """Returns a number of bytes with its unit."""
    if num_bytes is None:
        return "unknown size"
    unit = 0
    while num_bytes >= 1000 and unit < len(_UNITS) - 1:
        num_bytes, unit = num_bytes / 1000, unit + 1
    return (
        f"{num_bytes:,.0f} {_UNITS[unit]}"
        if not unit
        else f"{format_number(num_bytes)} {_UNITS[unit]}"
    )


def label(metric: str) -> str:
    """Returns the usual name of a metric, such as `RMSE` or `accuracy without OOV`."""
    words = shorten(metric).replace("_", " ").split(" ")
    return " ".join(w.upper() if w.partition("@")[0] in _ACRONYMS else w for w in words)


def shorten(text: object, longest: int = _LONGEST) -> str:
    """Returns an untrusted text, escaped and shortened so that a page can show it."""
    text = str(text)
    return printable(text[:longest]) + "…" * (len(text) > longest)


def option_text(name: str, value: object) -> str:
    """Returns the value of an option as a page shows it: shortened, and without folders."""
    if isinstance(value, (list, tuple)):
        return ",".join(option_text(name, one) for one in value)
    if isinstance(value, str) and name.endswith(_ADDRESSES):
        return "host:port"
    if isinstance(value, str):
        is_path = name.endswith(_PATHS) or pathlib.PurePath(value).is_absolute()
        return shorten(f"path/to/{pathlib.PurePath(value).name}" if is_path else value)
    return shorten(value)

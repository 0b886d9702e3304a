"""The table: a cell for each method and task, and ranks with ties.

Rows without federation have no rank: baselines, local and centralised training. One method is
better than another if a paired interval over test clients shows it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.errors import UserError
from fedpersonal.evaluation.baselines import BASELINE_SUFFIX, strongest_baseline
from fedpersonal.evaluation.client_metrics import find_metric
from fedpersonal.files import read_json
from fedpersonal.methods.method import Method
from fedpersonal.report.run import read_run
from fedpersonal.suite.leaderboard.board import REFUSED, STARTS_FILE, Board, Key
from fedpersonal.suite.leaderboard.settings import TunedSetting
from fedpersonal.suite.leaderboard.tasks import REFERENCE, Entry
from fedpersonal.suite.papers.table import Cell as Figure
from fedpersonal.suite.papers.table import difference
from fedpersonal.suite.sweeps.trials import Trial

BASELINE_NAME = "strongest baseline"
# Kinds of rows, as in the files of the table.
BASELINE_ROW, LOCAL, SERVER, FEDERATED = "guess", "local", "server", "federated"


# The names of fields of `Cell` in files, if they differ.
FILE_KEYS = {"above_baseline": "above_guess", "worse": "worse_off"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """The results of a method on a task.

    Attributes:
        value: The metric; None without a result.
        behind: The metric minus that of FedAvg with fine-tuning, with its interval.
        above_baseline: The metric minus that of the strongest baseline, with its interval.
        worse: Share of test clients whose metric is worse than with FedAvg and fine-tuning.
        rank: Rank among the ranked methods; ties share ranks. Diverged methods rank last; methods
            that do not support the task's options have no rank.
        down: Bytes that a client receives in a round.
        up: Bytes that a client sends in a round.
        kept: Bytes that a client keeps from round to round.
        round_seconds: The median duration of rounds.
        rounds: The number of rounds.
        starts: The metric of seen clients that start from other values than the kept ones.
        setting: The tuned options, and how they were chosen; None without tuning.
        why: The reason why there is no value.
        same_as: An earlier method whose clients' figures are equal to the bit, which counts for
            both; empty if there is none.
    """

    value: Figure[float] | None = None
    behind: Figure[float] | None = None
    above_baseline: Figure[float] | None = None
    worse: float | None = None
    rank: float | None = None
    down: float | None = None
    up: float | None = None
    kept: float | None = None
    round_seconds: float | None = None
    rounds: int | None = None
    starts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    setting: TunedSetting | None = None
    why: str = ""
    same_as: str = ""

    @property
    def is_untuned(self) -> bool:
        """Whether the cell has the first setting, without tuning."""
        return self.setting is None and not self.why


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A row.

    Attributes:
        name: The method's name in flags, or `strongest baseline`.
        title: The title of the method.
        kind: `federated`, `local`, `server` or `guess`, the row of baselines.
        cells: The cells by task.
    """

    name: str
    title: str
    kind: str
    cells: Mapping[str, Cell]

    @property
    def num_tasks(self) -> int:
        """The number of tasks that are not refused."""
        return sum(not cell.why.startswith(REFUSED) for cell in self.cells.values())

    @property
    def ranks(self) -> dict[str, float]:
        """The ranks by task, without tasks that have none."""
        return {task: cell.rank for task, cell in self.cells.items() if cell.rank is not None}

    def mean_rank(self, tasks: Collection[str]) -> float | None:
        """Returns the mean rank over those of `tasks` that have one; None if there are none."""
        ranks = [rank for task, rank in self.ranks.items() if task in tasks]
        return statistics.mean(ranks) if ranks else None


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of the figures of a task.

    Attributes:
        date: The day.
        version: The version of fedpersonal.
        commit: The commit of the checkout; empty for an installed package.
        command: The command that makes the figures again.
        seeds: The seeds of a cell.
    """

    date: str
    version: str
    commit: str
    command: str
    seeds: Sequence[int]


@dataclasses.dataclass(frozen=True)
class BoardTable:
    """The table.

    Attributes:
        entries: The tasks.
        size: `quick` or `full`.
        seeds: The seeds of a cell.
        rows: Ranked rows, best first; then rows without federation.
        clear: The pairs of methods of which the first is clearly better, by task; of methods with
            equal figures, only the first is in the pairs.
        origins: The origins of figures by task, in a table that is joined from others.
    """

    entries: Sequence[Entry]
    size: str
    seeds: Sequence[int]
    rows: Sequence[Row]
    clear: Mapping[str, frozenset[tuple[str, str]]]
    origins: Mapping[str, Origin] = dataclasses.field(default_factory=dict)

    @property
    def averaged(self) -> Collection[str]:
        """The tasks over which ranks are averaged."""
        return averaged_tasks(self.rows)

    @property
    def titles(self) -> dict[str, str]:
        """The methods' titles, by name."""
        return {row.name: row.title for row in self.rows}

    def is_clear(self, task: str, first: Row, second: Row) -> bool:
        """Returns whether the first of two methods is clearly better on a task."""
        names = (row.cells[task].same_as or row.name for row in (first, second))
        return tuple(names) in self.clear[task]


@dataclasses.dataclass(frozen=True)
class _Tested:
    """The test clients of a method on a task, one table per seed, and their summaries."""

    clients: list[pd.DataFrame]
    tests: list[Mapping[str, Any]]


def tabulate_board(board: Board, why: Mapping[Key, str]) -> BoardTable:
    """Returns the table of a board whose runs are done.

    Args:
        board: The board.
        why: The reasons why cells have no value, from `Board.run`.
    """
    cells: dict[str, dict[str, Cell]] = {}
    all_methods: dict[str, type[Method]] = {}
    baselines: dict[str, Cell] = {}
    clear = {}
    for entry in board.entries:
        methods = {method.name: method for method in board.methods(entry)}
        all_methods.update(methods)
        tested = {
            name: _tested(entry, board.trials[entry.name, name])
            for name in methods
            if (entry.name, name) not in why
        }
        ranked = [
            name
            for name in methods
            if _kind(methods[name]) == FEDERATED
            and not why.get((entry.name, name), "").startswith(REFUSED)
        ]
        same = same_as(entry, tested, ranked)
        counted = [name for name in ranked if name not in same]
        clear[entry.name] = better = _clearly_better(entry, tested, counted)
        ranks = rank(counted, better)
        ranks.update({name: ranks[first] for name, first in same.items()})
        for name in methods:
            key = (entry.name, name)
            fields: dict[str, Any] = {
                "rank": ranks.get(name),
                "setting": board.setting(entry, methods[name]),
                "why": why.get(key, ""),
                "same_as": same.get(name, ""),
            }
            if name in tested:
                fields.update(_figures(entry, tested[name], tested.get(REFERENCE)))
                fields.update(_costs(entry, board.trials[key], methods[name]))
            cells.setdefault(name, {})[entry.name] = Cell(**fields)
        baselines.update(_baseline_cell(entry, tested))
    rows = [
        Row(name, all_methods[name].title, _kind(all_methods[name]), by_task)
        for name, by_task in cells.items()
    ]
    if baselines:
        rows.append(Row(BASELINE_NAME, BASELINE_NAME.capitalize(), BASELINE_ROW, baselines))
    return BoardTable(board.entries, board.size, board.seeds, in_order(rows), clear)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Returns rows in the order of the table: by the number of averaged ranks, then their mean."""
    rows = [*rows]
    averaged = averaged_tasks(rows)

    def key(row: Row) -> tuple:
        kinds = row.kind == BASELINE_ROW, row.kind != FEDERATED
        num_ranks, mean = len(row.ranks.keys() & {*averaged}), row.mean_rank(averaged)
        return (*kinds, -num_ranks, mean or math.inf, -row.num_tasks, row.title)

    return sorted(rows, key=key)


def tuned_tasks(rows: Iterable[Row]) -> list[str]:
    """Returns the tasks on which most methods are tuned."""
    untuned: dict[str, list[bool]] = {}
    for row in rows:
        for task in row.ranks:
            untuned.setdefault(task, []).append(row.cells[task].is_untuned)
    return [task for task, values in untuned.items() if 2 * sum(values) < len(values)]


def averaged_tasks(rows: Sequence[Row]) -> Collection[str]:
    """Returns the tasks over which ranks are averaged: tuned tasks, or all if none is tuned."""
    return tuned_tasks(rows) or {task for row in rows for task in row.cells}


def rank(names: Sequence[str], better: frozenset[tuple[str, str]]) -> dict[str, float]:
    """Returns the rank of each method: 1, plus the clearly better methods, plus half the ties.

    Args:
        names: The methods' names.
        better: The pairs of methods of which the first is clearly better.
    """
    ranks = {}
    for name in names:
        above = sum((other, name) in better for other in names)
        tied = sum(other != name and not {(other, name), (name, other)} & better for other in names)
        ranks[name] = 1 + above + tied / 2
    return ranks


def _kind(method: type[Method]) -> str:
    if not method.trains:
        return LOCAL
    return FEDERATED if method.is_federated else SERVER


def _tested(entry: Entry, trials: Sequence[Trial]) -> _Tested:
    """Returns the test clients of a method's runs, without clients that have no figure."""
    metric, clients, tests = entry.compared, [], []
    for trial in trials:
        table = trial.run.record.per_client
        if metric.column not in table:
            raise UserError(
                f"--tasks={entry.name}: {trial.run.path}/per_client.csv has no {metric.column}, by "
                "which methods are compared: make the task's first metric one of the model's."
            )
        if metric.weights is None:
            table = table.dropna(subset=[metric.column])
        clients.append(table)
        tests.append(trial.run.summary["test"])
    return _Tested(clients, tests)


def same_as(entry: Entry, tested: Mapping[str, _Tested], names: Sequence[str]) -> dict[str, str]:
    """Returns methods that repeat the figures of an earlier one to the bit, with the earlier one.

    Args:
        entry: The task.
        tested: The test clients by method.
        names: The compared methods.
    """
    first: dict[tuple, str] = {}
    repeated = {}
    for name in (name for name in names if name in tested):
        tables = [table.sort_values("client") for table in tested[name].clients]
        clients = tuple(tuple(table["client"]) for table in tables)
        figures = tuple(table[entry.compared.column].to_numpy().tobytes() for table in tables)
        leader = first.setdefault((clients, figures), name)
        if leader != name:
            repeated[name] = leader
    return repeated


def _clearly_better(
    entry: Entry, tested: Mapping[str, _Tested], ranked: Sequence[str]
) -> frozenset[tuple[str, str]]:
    """Returns the pairs of methods of which the first is better, with an interval without 0."""
    better = set()
    for place, first in enumerate(ranked):
        for second in ranked[place + 1 :]:
            if first in tested and second in tested:
                pair = (tested[first].clients, tested[second].clients)
                winner = verdict(difference(*pair, entry.compared), entry)
                better |= {{1: (first, second), -1: (second, first)}[winner]} if winner else set()
            elif first in tested or second in tested:  # Methods without a result rank last.
                better.add((first, second) if first in tested else (second, first))
    return frozenset(better)


def verdict(change: Figure[float] | None, entry: Entry) -> int:
    """Returns 1 if a difference is clearly an improvement, -1 if clearly a worsening, else 0."""
    if change is None or change.interval is None or change.interval[0] <= 0 <= change.interval[1]:
        return 0
    return 1 if (change.mean < 0) is entry.lower else -1


def _figures(entry: Entry, tested: _Tested, reference: _Tested | None) -> dict[str, Any]:
    """Returns the fields of a cell on its test clients."""
    name = find_metric(entry.metric, tested.tests[0]) or entry.metric
    fields: dict[str, Any] = {"value": Figure(tuple(test[name] for test in tested.tests))}
    baseline = _by_baseline(entry, tested)
    if baseline:
        fields["above_baseline"] = difference(tested.clients, baseline, entry.compared)
    if reference is not None and tested is not reference:
        fields["behind"] = difference(tested.clients, reference.clients, entry.compared)
        fields["worse"] = _share_worse(entry, tested.clients, reference.clients)
    return fields


def _by_baseline(entry: Entry, tested: _Tested) -> list[pd.DataFrame]:
    """Returns the test clients with the strongest baseline's figures, if there is one."""
    column = f"{entry.compared_name}{BASELINE_SUFFIX}"
    if any(column not in table for table in tested.clients):
        return []
    return [table.assign(**{entry.compared.column: table[column]}) for table in tested.clients]


def _share_worse(
    entry: Entry, tables: Sequence[pd.DataFrame], reference: Sequence[pd.DataFrame]
) -> float | None:
    """Returns the share of clients, of all seeds, whose figure is worse than the reference's."""
    metric, shares = entry.compared, []
    for pair in zip(tables, reference):
        first, second = (
            (table[table[metric.weights] > 0] if metric.weights else table).set_index("client")
            for table in pair
        )
        change = (first[metric.column] - second[metric.column]).dropna().to_numpy()
        shares.append(change > 0 if entry.lower else change < 0)
    return float(np.concatenate(shares).mean()) if shares else None


def _costs(entry: Entry, trials: Sequence[Trial], method: type[Method]) -> dict[str, Any]:
    """Returns the fields of a cell on its training, and on other starts."""
    summaries = [trial.run.summary for trial in trials]
    run = read_run(trials[0].run.path)
    kept = sum(variable["num_bytes"] for variable in run.local) if run.keeps_local else 0
    starts: dict[str, list[float]] = {}
    for trial in trials:
        for start, test in read_json(trial.run.path / STARTS_FILE, checked=True).items():
            name = find_metric(entry.metric, test)
            if name:
                starts.setdefault(start, []).append(test[name])
    first, has_clients = summaries[0], method.is_federated
    return {
        "down": first["broadcast_bytes_per_client"] if has_clients else None,
        "up": first["aggregated_bytes_per_client"] if has_clients else None,
        "kept": kept if has_clients else None,
        "round_seconds": statistics.median(s["median_round_seconds"] for s in summaries),
        "rounds": first["rounds"],
        "starts": {start: statistics.mean(values) for start, values in starts.items()},
    }


def _baseline_cell(entry: Entry, tested: Mapping[str, _Tested]) -> dict[str, Cell]:
    """Returns the cell of a task's strongest baseline, if it has one."""
    first = tested.get(REFERENCE) or next(iter(tested.values()), None)
    if len({frozenset(test["guesses"]) for one in tested.values() for test in one.tests}) > 1:
        raise UserError(
            f"Runs of {entry.name} have different baselines, of another version. Remove "
            f"runs/{entry.name} in the folder of the table, and run it again."
        )
    name = find_metric(entry.metric, first.tests[0]) if first else None
    best = strongest_baseline(first.tests, name) if first and name else None
    if first is None or best is None:
        return {}
    value = Figure(tuple(test["guesses"][best[0]][name] for test in first.tests))
    fields: dict[str, Any] = {"value": value, "why": best[0]}
    baseline, reference = _by_baseline(entry, first), tested.get(REFERENCE)
    if baseline and reference:
        fields["behind"] = difference(baseline, reference.clients, entry.compared)
        fields["worse"] = _share_worse(entry, baseline, reference.clients)
    return {entry.name: Cell(**fields)}

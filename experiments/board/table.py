"""The table: a cell for each method and task, ranks with ties, and what to take when.

Rows that need no federation frame it: guesses, local training, a server with all data. They have no
rank. Whatever says that one method is better than another is a paired interval over test clients.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.board.board import REFUSED, STARTS_FILE, Board, Key
from experiments.board.settings import Found
from experiments.board.tasks import BASELINE, Entry
from experiments.papers.table import Cell as Figure
from experiments.papers.table import difference
from experiments.sweeping.trials import Trial
from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import find_metric
from fedpersonal.evaluation.guess import GUESS, best_guess
from fedpersonal.files import read_json
from fedpersonal.methods.method import Method
from fedpersonal.report.run import read_run

GUESSED = "best guess"
# How a row comes about.
GUESS_ROW, LOCAL, SERVER, FEDERATED = "guess", "local", "server", "federated"


@dataclasses.dataclass(frozen=True)
class Cell:
    """What a method comes to on a task.

    Attributes:
        value: The metric; None where it has none.
        behind: It less that of FedAvg with fine-tuning, with its interval.
        above_guess: It less that of the best guess.
        worse_off: Share of test clients that are worse off than with FedAvg and fine-tuning.
        rank: Among the methods that are ranked; ties share theirs. One whose training diverges is
            behind all others; one that the task's options do not suit has none.
        down: Bytes that a client receives in a round.
        up: Bytes that it sends.
        kept: Bytes that it keeps from round to round.
        round_seconds: The median over rounds.
        rounds: Rounds.
        starts: The metric of seen clients that start otherwise than from what they kept.
        setting: The options that tuning has chosen, and how; None where nobody has tuned it.
        why: Why there is no value.
        same_as: The method before it whose clients' figures are equal to the bit; empty for none.
            It counts in place of both.
    """

    value: Figure[float] | None = None
    behind: Figure[float] | None = None
    above_guess: Figure[float] | None = None
    worse_off: float | None = None
    rank: float | None = None
    down: float | None = None
    up: float | None = None
    kept: float | None = None
    round_seconds: float | None = None
    rounds: int | None = None
    starts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    setting: Found | None = None
    why: str = ""
    same_as: str = ""

    @property
    def is_untuned(self) -> bool:
        """Whether it has the first setting, since nobody has tuned it."""
        return self.setting is None and not self.why


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A row.

    Attributes:
        name: The method's name in flags; of a guess what it is.
        title: Its name for people.
        kind: `federated`, `local`, `server` or `guess`.
        cells: By task.
    """

    name: str
    title: str
    kind: str
    cells: Mapping[str, Cell]

    @property
    def num_tasks(self) -> int:
        """How many tasks it does."""
        return sum(not cell.why.startswith(REFUSED) for cell in self.cells.values())

    @property
    def ranks(self) -> dict[str, float]:
        """By task, where it has one."""
        return {task: cell.rank for task, cell in self.cells.items() if cell.rank is not None}

    def mean_rank(self, tasks: Collection[str]) -> float | None:
        """Returns the mean over those of some tasks that it has a rank in."""
        ranks = [rank for task, rank in self.ranks.items() if task in tasks]
        return statistics.mean(ranks) if ranks else None


@dataclasses.dataclass(frozen=True)
class Origin:
    """How the figures of a task came about.

    Attributes:
        date: The day.
        version: That of fedpersonal.
        commit: Of the checkout; empty for an installed package.
        command: What makes them again.
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
        rows: Ranked ones first, the best first; then those that frame it.
        clear: By task, the pairs of methods of which the first is clearly better; of methods that
            are the same, the first one's.
        origins: By task, in a table that is joined from others.
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
        """The methods' names for people, by their names."""
        return {row.name: row.title for row in self.rows}

    def is_clear(self, task: str, first: Row, second: Row) -> bool:
        """Tells whether the first of two methods is clearly better on a task."""
        names = (row.cells[task].same_as or row.name for row in (first, second))
        return tuple(names) in self.clear[task]


@dataclasses.dataclass(frozen=True)
class _Tested:
    """The test clients of a method on a task, a table a seed, and their summaries."""

    clients: list[pd.DataFrame]
    tests: list[Mapping[str, Any]]


def tabulate_board(board: Board, why: Mapping[Key, str]) -> BoardTable:
    """Returns the table of a board whose runs are done.

    Args:
        board: The board.
        why: Why a cell has no value, as of `Board.run`.
    """
    cells: dict[str, dict[str, Cell]] = {}
    of_methods: dict[str, type[Method]] = {}
    guesses: dict[str, Cell] = {}
    clear = {}
    for entry in board.entries:
        methods = {method.name: method for method in board.methods(entry)}
        of_methods.update(methods)
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
            found: dict[str, Any] = {
                "rank": ranks.get(name),
                "setting": board.setting(entry, methods[name]),
                "why": why.get(key, ""),
                "same_as": same.get(name, ""),
            }
            if name in tested:
                found.update(_figures(entry, tested[name], tested.get(BASELINE)))
                found.update(_costs(entry, board.trials[key], methods[name]))
            cells.setdefault(name, {})[entry.name] = Cell(**found)
        guesses.update(_guess_cell(entry, tested))
    rows = [Row(n, of_methods[n].title, _kind(of_methods[n]), own) for n, own in cells.items()]
    rows += [Row(GUESSED, "Best guess", GUESS_ROW, guesses)] if guesses else []
    return BoardTable(board.entries, board.size, board.seeds, in_order(rows), clear)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Returns rows as a table has them: those with most ranks in the mean first, by that mean."""
    rows = [*rows]
    averaged = averaged_tasks(rows)

    def key(row: Row) -> tuple:
        kinds = row.kind == GUESS_ROW, row.kind != FEDERATED
        num_ranks, mean = len(row.ranks.keys() & {*averaged}), row.mean_rank(averaged)
        return (*kinds, -num_ranks, mean or math.inf, -row.num_tasks, row.title)

    return sorted(rows, key=key)


def tuned_tasks(rows: Iterable[Row]) -> list[str]:
    """Returns the tasks on which most methods are tuned."""
    untuned: dict[str, list[bool]] = {}
    for row in rows:
        for task in row.ranks:
            untuned.setdefault(task, []).append(row.cells[task].is_untuned)
    return [task for task, own in untuned.items() if 2 * sum(own) < len(own)]


def averaged_tasks(rows: Sequence[Row]) -> Collection[str]:
    """Returns the tasks over which ranks are averaged: the tuned ones, or all if none is."""
    return tuned_tasks(rows) or {task for row in rows for task in row.cells}


def rank(names: Sequence[str], better: frozenset[tuple[str, str]]) -> dict[str, float]:
    """Returns the rank of each name: one, and all that are clearly better, and half of its ties.

    Args:
        names: The names.
        better: The pairs of which the first is clearly better.
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
    """Returns what a method's runs found; clients without a figure are left out."""
    metric, clients, tests = entry.compared, [], []
    for trial in trials:
        table = trial.run.record.per_client
        if metric.column not in table:
            raise UserError(
                f"--tasks={entry.name}: {trial.run.path}/per_client.csv has no {metric.column}, by "
                "which methods would be compared: let the task's first metric be one of the model."
            )
        if metric.weights is None:
            table = table.dropna(subset=[metric.column])
        clients.append(table)
        tests.append(trial.run.summary["test"])
    return _Tested(clients, tests)


def same_as(entry: Entry, tested: Mapping[str, _Tested], names: Sequence[str]) -> dict[str, str]:
    """Returns the first of the methods whose clients' figures are equal to the bit, by the others.

    Args:
        entry: The task.
        tested: The test clients by method.
        names: The methods that are compared.
    """
    first: dict[tuple, str] = {}
    found = {}
    for name in (name for name in names if name in tested):
        tables = [table.sort_values("client") for table in tested[name].clients]
        clients = tuple(tuple(table["client"]) for table in tables)
        figures = tuple(table[entry.compared.column].to_numpy().tobytes() for table in tables)
        leader = first.setdefault((clients, figures), name)
        if leader != name:
            found[name] = leader
    return found


def _clearly_better(
    entry: Entry, tested: Mapping[str, _Tested], ranked: Sequence[str]
) -> frozenset[tuple[str, str]]:
    """Returns the pairs of methods of which the first is better, and its interval lacks 0."""
    better = set()
    for place, first in enumerate(ranked):
        for second in ranked[place + 1 :]:
            if first in tested and second in tested:
                pair = (tested[first].clients, tested[second].clients)
                winner = verdict(difference(*pair, entry.compared), entry)
                better |= {{1: (first, second), -1: (second, first)}[winner]} if winner else set()
            elif first in tested or second in tested:  # Who has no result is behind all others.
                better.add((first, second) if first in tested else (second, first))
    return frozenset(better)


def verdict(found: Figure[float] | None, entry: Entry) -> int:
    """Returns 1 where a difference is clearly for the better, -1 for the worse, else 0."""
    if found is None or found.interval is None or found.interval[0] <= 0 <= found.interval[1]:
        return 0
    return 1 if (found.mean < 0) is entry.lower else -1


def _figures(entry: Entry, own: _Tested, baseline: _Tested | None) -> dict[str, Any]:
    """Returns the fields of a cell that are of its test clients."""
    name = find_metric(entry.metric, own.tests[0]) or entry.metric
    found: dict[str, Any] = {"value": Figure(tuple(test[name] for test in own.tests))}
    guessed = _guessed(entry, own)
    if guessed:
        found["above_guess"] = difference(own.clients, guessed, entry.compared)
    if baseline is not None and own is not baseline:
        found["behind"] = difference(own.clients, baseline.clients, entry.compared)
        found["worse_off"] = _worse_off(entry, own.clients, baseline.clients)
    return found


def _guessed(entry: Entry, tested: _Tested) -> list[pd.DataFrame]:
    """Returns the test clients with the best guess' figures in place of a method's, if any."""
    column = f"{entry.compared_name}{GUESS}"
    if any(column not in table for table in tested.clients):
        return []
    return [table.assign(**{entry.compared.column: table[column]}) for table in tested.clients]


def _worse_off(
    entry: Entry, ours: Sequence[pd.DataFrame], others: Sequence[pd.DataFrame]
) -> float | None:
    """Returns the share of clients, of all seeds, whose own figure is the worse one."""
    metric, shares = entry.compared, []
    for pair in zip(ours, others):
        first, second = (
            (table[table[metric.weights] > 0] if metric.weights else table).set_index("client")
            for table in pair
        )
        change = (first[metric.column] - second[metric.column]).dropna().to_numpy()
        shares.append(change > 0 if entry.lower else change < 0)
    return float(np.concatenate(shares).mean()) if shares else None


def _costs(entry: Entry, trials: Sequence[Trial], method: type[Method]) -> dict[str, Any]:
    """Returns the fields of a cell that are of its training, and of other starts."""
    summaries = [trial.run.summary for trial in trials]
    run = read_run(trials[0].run.path)
    kept = sum(variable["num_bytes"] for variable in run.local) if run.keeps else 0
    starts: dict[str, list[float]] = {}
    for trial in trials:
        for start, test in read_json(trial.run.path / STARTS_FILE, checked=True).items():
            known = find_metric(entry.metric, test)
            if known:
                starts.setdefault(start, []).append(test[known])
    first, has_clients = summaries[0], method.is_federated
    return {
        "down": first["broadcast_bytes_per_client"] if has_clients else None,
        "up": first["aggregated_bytes_per_client"] if has_clients else None,
        "kept": kept if has_clients else None,
        "round_seconds": statistics.median(s["median_round_seconds"] for s in summaries),
        "rounds": first["rounds"],
        "starts": {start: statistics.mean(values) for start, values in starts.items()},
    }


def _guess_cell(entry: Entry, tested: Mapping[str, _Tested]) -> dict[str, Cell]:
    """Returns the cell of the best guess of a task, if it has one."""
    first = tested.get(BASELINE) or next(iter(tested.values()), None)
    if len({frozenset(test["guesses"]) for own in tested.values() for test in own.tests}) > 1:
        raise UserError(
            f"Runs of {entry.name} were tested beside other guesses, by another version. Remove "
            f"runs/{entry.name} in the folder of the table, and run it again."
        )
    name = find_metric(entry.metric, first.tests[0]) if first else None
    best = best_guess(first.tests, name) if first and name else None
    if first is None or best is None:
        return {}
    guess = Figure(tuple(test["guesses"][best[0]][name] for test in first.tests))
    found: dict[str, Any] = {"value": guess, "why": best[0]}
    guessed, baseline = _guessed(entry, first), tested.get(BASELINE)
    if guessed and baseline:
        found["behind"] = difference(guessed, baseline.clients, entry.compared)
        found["worse_off"] = _worse_off(entry, guessed, baseline.clients)
    return {entry.name: Cell(**found)}

"""Kills runs at each of their steps in turn, in forked processes, and lets each go on.

That is at every file operation of Python's, every statement and the end of every commit in the
store, and every step of a round, or every so many of these; of a run whose state is in files
(`plain`), and of one whose clients keep local variables (`kept`).
Usage: kills.py FOLDER plain|kept EVERY. Prints a JSON object: how many kills there were, after
which rounds runs went on, and which of them ended otherwise than an undisturbed run.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import pickle
import signal
import sqlite3
import sys
import types

import numpy as np
import toy_process

from fedpersonal.runs import folder as run_folder
from fedpersonal.runs import metrics as metric_log
from fedpersonal.runs.checkpoints import StoreCheckpoints
from fedpersonal.runs.kept import Rounds
from fedpersonal.runs.state import Callback
from fedpersonal.runs.store import LocalStateStore
from fedpersonal.training import loop
from fedpersonal.training.callbacks import BestModel, EarlyStopping

# What Python reports to audit hooks where a run touches its files; and the steps of a round.
_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "toy.step"}


def step():
    """Marks a moment at which the run is killed, too."""
    sys.audit("toy.step")


def around(method):
    """Marks the moments before and after a method."""

    def marked(*arguments):
        step()
        found = method(*arguments)
        step()
        return found

    return marked


def connect_and_watch(*arguments, connect=sqlite3.connect, **options):
    connection = connect(*arguments, **options)
    connection.set_trace_callback(lambda statement: step())
    return connection


class Plain:
    """A process without clients, and callbacks that remember something."""

    rounds, every = 30, 3

    def __init__(self, folder):
        # The run ends after round 7; it was best after round 5, which has no checkpoint of its own.
        stopping = EarlyStopping("train/loss", patience=2)
        best = BestModel("train/loss", keep=lambda state: state["weights"])
        self.process, self.saved_in, self.callbacks = self, None, [stopping, best, Mean()]

    def initialize(self):
        return {"weights": np.zeros(5), "rounds": 0}

    def next(self, state, cohort):
        weights = state["weights"] * 0.9 + cohort
        state = {"weights": weights, "rounds": state["rounds"] + 1}
        return types.SimpleNamespace(state=state, metrics={"loss": weights.mean()})

    def cohort(self, round_number):
        return np.random.default_rng(round_number).normal(size=5)

    def weights_of(self, state):
        return state["weights"]

    def outcome(self, result):
        """All that the run has come to, beside its files."""
        stopping, best, mean = self.callbacks
        assert (result.state["rounds"], best.best_round) == (7, 5)
        return [
            (result.state["weights"].tobytes(), result.stop_reason),
            (stopping.best, stopping.best_round),
            (best.best, best.best_round, best.kept.tobytes()),
            (mean.total, mean.rounds),
        ]


class Mean(Callback):
    """A user's callback: the mean of all losses."""

    remembers = ("total", "rounds")

    def __init__(self):
        self.total, self.rounds = 0.0, 0

    def on_round_end(self, run):
        self.total, self.rounds = self.total + run.metrics["train/loss"], self.rounds + 1


class Kept:
    """A process whose clients keep variables in a store."""

    rounds, every = 6, 4

    def __init__(self, folder):
        self.store = LocalStateStore.open(folder / "local_state.sqlite", toy_process.VARIABLES)
        self.saved_in, self.callbacks = StoreCheckpoints(self.store), []
        self.process, self.cohort = Rounds(toy_process.Process(), self.store), toy_process.cohort

    def weights_of(self, state):
        return state.server.weights

    def outcome(self, result):
        """All that the run has come to, beside its files."""
        rows, server = self.store.read(toy_process.IDS), result.state.server
        self.store.close()
        return server.weights.tobytes(), server.rounds, result.state.round_number, rows


def run(kind, folder):
    """Begins a run or goes on; returns the round after which it went on, and its outcome."""
    opened = run_folder.RunFolder.open(folder, {"seed": 1})
    run = {"plain": Plain, "kept": Kept}[kind](folder)

    def evaluate(state, round_number):
        return {f"rmse_{round_number // 3}": run.weights_of(state).std()}

    result = loop.run_rounds(
        process=run.process,
        cohort_fn=run.cohort,
        run_folder=opened,
        total_rounds=run.rounds,
        evaluate_fn=around(evaluate),
        rounds_per_eval=3,
        rounds_per_checkpoint=run.every,
        progress=False,
        callbacks=run.callbacks,
        saved_in=run.saved_in,
    )
    # All of a run's files that must not depend on how often it was stopped, without the seconds.
    cells = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    files = sorted(p.name for p in folder.rglob("*") if p.is_file() and p.name[:7] != "events.")
    return result.resumed_from, (
        run.outcome(result),
        [row[:1] + row[2:] for row in cells],
        files,
    )


def in_child(answer, function, *arguments):
    """Returns the exit status of a forked call of the function, whose result goes to a file."""
    child = os.fork()
    if child == 0:
        answer.write_bytes(pickle.dumps(function(*arguments)))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_and_be_killed(number, *arguments):
    left = itertools.count(number, -1)

    def hook(event, _):
        if event in _EVENTS and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run(*arguments)


def main(base, kind, every):
    """Kills a run at its first step, another `every` steps later, and so on; prints the report."""
    os.fsync = lambda file: None  # A kill leaves what was written, on disk or not.
    sqlite3.connect = connect_and_watch
    for owner, name in (
        (metric_log.MetricLog, "on_round_end"),
        (Mean, "on_round_end"),
        (Plain, "next"),
        (toy_process.Process, "next"),
        (LocalStateStore, "commit"),
    ):
        setattr(owner, name, around(getattr(owner, name)))
    answer = base / "answer"
    assert in_child(answer, run, kind, base / "undisturbed") == 0
    _, expected = pickle.loads(answer.read_bytes())
    report = {"kills": 0, "resumed_from": [], "different": []}
    for number in itertools.count(0, every):
        folder = base / str(number)
        status = in_child(answer, run_and_be_killed, number, kind, folder)
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        report["kills"] += 1
        assert in_child(answer, run, kind, folder) == 0, number
        resumed_from, outcome = pickle.loads(answer.read_bytes())
        report["resumed_from"].append(resumed_from)
        if outcome != expected:
            report["different"].append([number, repr(outcome)])
    print(json.dumps(report))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))

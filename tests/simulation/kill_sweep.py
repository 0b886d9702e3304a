"""Kills a run at each of its steps in turn, in forked processes, and lets each go on."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import sys

from fedpersonal.simulation.callbacks import metric_log

# What Python reports to audit hooks where a run touches its files; and the steps of a round.
_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "toy.step"}


def step():
    """Marks a moment at which the run is killed, too."""
    sys.audit("toy.step")


class _Log(metric_log.MetricLog):
    def on_round_end(self, run):
        step()
        super().on_round_end(run)
        step()


metric_log.MetricLog = _Log


def outcome_of(folder):
    """Returns all of a run's files that must not depend on how often it was stopped.

    Args:
        folder: The run's folder.
    """
    lines = (folder / "metrics.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines]
    # Without the seconds.
    rows = [row[:1] + row[2:] for row in cells]
    files = sorted(
        path.name
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("events.")
    )
    return rows, files


def sweep(base, *, run, finish):
    """Kills a run at its first step, another at its second, and so on, and prints a report.

    The report is a JSON object: how many kills there were, after which rounds runs went on, and
    which of them ended otherwise than an undisturbed run.

    Args:
        base: A folder for the runs.
        run: Takes a folder and begins or goes on with the run there.
        finish: The same, and returns the round after which it went on, and its outcome.
    """
    answer = base / "answer"
    assert _in_child(answer, finish, base / "undisturbed") == 0
    _, expected = pickle.loads(answer.read_bytes())
    report = {"kills": 0, "resumed_from": [], "different": []}
    for number in itertools.count():
        folder = base / str(number)
        status = _in_child(answer, _run_and_be_killed, run, number, folder)
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        report["kills"] += 1
        assert _in_child(answer, finish, folder) == 0, number
        resumed_from, outcome = pickle.loads(answer.read_bytes())
        report["resumed_from"].append(resumed_from)
        if outcome != expected:
            report["different"].append([number, repr(outcome)])
    print(json.dumps(report))


def _in_child(answer, function, *arguments):
    """Returns the exit status of a forked call of the function, whose result goes to a file."""
    child = os.fork()
    if child == 0:
        result = function(*arguments)
        answer.write_bytes(pickle.dumps(result))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_and_be_killed(run, number, folder):
    left = itertools.count(number, -1)

    def hook(event, arguments):
        if event in _EVENTS and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run(folder)

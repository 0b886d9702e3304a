"""Kills a run at every file operation and every round in turn, and lets each go on.

Usage: kill_everywhere.py FOLDER. Prints a JSON object: how many kills there were, after which
rounds runs went on, and which of them ended otherwise than an undisturbed run.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import pickle
import signal
import sys
import types

import numpy as np

from fedpersonal.simulation import loop, metric_log, run_folder

# What Python reports to audit hooks where a run touches its files; and the steps of a round.
_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "toy.step"}


class Process:
    def initialize(self):
        return {"weights": np.zeros(5), "rounds": 0}

    def next(self, state, cohort):
        sys.audit("toy.step")
        weights = state["weights"] * 0.9 + cohort
        state = {"weights": weights, "rounds": state["rounds"] + 1}
        return types.SimpleNamespace(state=state, metrics={"loss": weights.mean()})


def _cohort(round_number):
    return np.random.default_rng(round_number).normal(size=5)


def _evaluate(state, round_number):
    sys.audit("toy.step")
    return {f"rmse_{round_number // 4}": state["weights"].std()}


class _Log(metric_log.MetricLog):
    def append(self, *arguments):
        sys.audit("toy.step")
        super().append(*arguments)
        sys.audit("toy.step")


metric_log.MetricLog = _Log


def _run(folder):
    return loop.run_rounds(
        process=Process(),
        cohort_fn=_cohort,
        run_folder=run_folder.RunFolder.open(folder, {"seed": 1}),
        total_rounds=8,
        evaluate_fn=_evaluate,
        rounds_per_eval=4,
        rounds_per_checkpoint=3,
        progress=False,
    )


def _outcome(folder):
    """Runs and returns all that must not depend on how often the run was stopped."""
    result = _run(folder)
    lines = (folder / "metrics.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines]
    rows = [row[:1] + row[2:] for row in cells]
    state = result.state
    files = sorted(
        path.name
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("events.")
    )
    return result.resumed_from, (rows, state["weights"].tobytes(), state["rounds"], files)


def _in_child(answer, function, *arguments):
    """Returns the exit status of a forked call of the function, whose result goes to a file."""
    child = os.fork()
    if child == 0:
        result = function(*arguments)
        answer.write_bytes(pickle.dumps(result))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_and_be_killed(number, folder):
    left = itertools.count(number, -1)

    def hook(event, arguments):
        if event in _EVENTS and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    _run(folder)


def main(base):
    answer = base / "answer"
    assert _in_child(answer, _outcome, base / "undisturbed") == 0
    _, expected = pickle.loads(answer.read_bytes())
    report = {"kills": 0, "resumed_from": [], "different": []}
    for number in itertools.count():
        folder = base / str(number)
        status = _in_child(answer, _run_and_be_killed, number, folder)
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        report["kills"] += 1
        assert _in_child(answer, _outcome, folder) == 0, number
        resumed_from, outcome = pickle.loads(answer.read_bytes())
        report["resumed_from"].append(resumed_from)
        if outcome != expected:
            report["different"].append([number, repr(outcome)])
    print(json.dumps(report))


main(pathlib.Path(sys.argv[1]))

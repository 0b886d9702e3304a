"""Kills a run at every file operation and every round in turn, and lets each go on.

Usage: kill_everywhere.py FOLDER. Prints the report of `kill_sweep`.
"""

from __future__ import annotations

import pathlib
import sys
import types

import kill_sweep
import numpy as np

from fedpersonal.simulation import loop, run_folder
from fedpersonal.simulation.callbacks.callback import Callback
from fedpersonal.simulation.callbacks.watched_metric import BestModel, EarlyStopping


class Process:
    def initialize(self):
        return {"weights": np.zeros(5), "rounds": 0}

    def next(self, state, cohort):
        kill_sweep.step()
        weights = state["weights"] * 0.9 + cohort
        state = {"weights": weights, "rounds": state["rounds"] + 1}
        return types.SimpleNamespace(state=state, metrics={"loss": weights.mean()})


def _cohort(round_number):
    return np.random.default_rng(round_number).normal(size=5)


def _evaluate(state, round_number):
    kill_sweep.step()
    return {f"rmse_{round_number // 4}": state["weights"].std()}


class _Mean(Callback):
    """A user's: the mean of all losses. It is killed before and after it has seen a round."""

    remembers = ("total", "rounds")

    def __init__(self):
        self.total, self.rounds = 0.0, 0

    def on_round_end(self, run):
        kill_sweep.step()
        self.total, self.rounds = self.total + run.metrics["train/loss"], self.rounds + 1
        kill_sweep.step()


def _callbacks():
    # The run ends after round 7; it was best after round 5, which has no checkpoint of its own.
    stopping = EarlyStopping("train/loss", patience=2)
    best = BestModel("train/loss", keep=lambda state: state["weights"])
    return [stopping, best, _Mean()]


def _run(folder, callbacks=None):
    return loop.run_rounds(
        process=Process(),
        cohort_fn=_cohort,
        run_folder=run_folder.RunFolder.open(folder, {"seed": 1}),
        total_rounds=30,
        evaluate_fn=_evaluate,
        rounds_per_eval=4,
        rounds_per_checkpoint=3,
        progress=False,
        callbacks=callbacks or _callbacks(),
    )


def _finish(folder):
    stopping, best, mean = callbacks = _callbacks()
    result = _run(folder, callbacks)
    state = result.state
    own = [
        (state["weights"].tobytes(), state["rounds"], result.stop_reason),
        (stopping.best, stopping.best_round),
        (best.best, best.best_round, best.kept.tobytes()),
        (mean.total, mean.rounds),
    ]
    assert (state["rounds"], best.best_round) == (7, 5)
    return result.resumed_from, (own, kill_sweep.outcome_of(folder))


if __name__ == "__main__":
    kill_sweep.sweep(pathlib.Path(sys.argv[1]), run=_run, finish=_finish)

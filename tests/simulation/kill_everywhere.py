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


def _finish(folder):
    result = _run(folder)
    state = result.state
    own = state["weights"].tobytes(), state["rounds"]
    return result.resumed_from, (own, kill_sweep.outcome_of(folder))


if __name__ == "__main__":
    kill_sweep.sweep(pathlib.Path(sys.argv[1]), run=_run, finish=_finish)

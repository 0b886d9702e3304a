"""Kills a run of clients that keep variables everywhere in turn, and lets each go on.

That is at every file operation of Python's, every statement and the end of every commit in the
store, and every step of a round. Usage: kill_rounds.py FOLDER. Prints the report of
`kill_sweep`.
"""

from __future__ import annotations

import pathlib
import sqlite3
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "simulation"))

import kill_sweep
import toy_process

from fedpersonal.local_state.rounds import Rounds
from fedpersonal.local_state.store import LocalStateStore
from fedpersonal.simulation import loop, run_folder
from fedpersonal.simulation.checkpoints import StoreCheckpoints

_connect = sqlite3.connect


def _connect_and_watch(*arguments, **options):
    connection = _connect(*arguments, **options)
    connection.set_trace_callback(lambda statement: kill_sweep.step())
    return connection


sqlite3.connect = _connect_and_watch


class _Store(LocalStateStore):
    def commit(self, *arguments):
        super().commit(*arguments)
        kill_sweep.step()


class _Process(toy_process.Process):
    def next(self, *arguments):
        kill_sweep.step()
        output = super().next(*arguments)
        kill_sweep.step()
        return output


def _evaluate(state, round_number):
    kill_sweep.step()
    return {f"rmse_{round_number // 3}": state.server.weights.std()}


def _run(folder):
    """Runs, closes the store, and returns the result and all that it has kept."""
    run = run_folder.RunFolder.open(folder, {"seed": 1})
    store = _Store.open(folder / "local_state.sqlite", toy_process.VARIABLES)
    result = loop.run_rounds(
        process=Rounds(_Process(), store),
        cohort_fn=toy_process.cohort,
        run_folder=run,
        total_rounds=6,
        evaluate_fn=_evaluate,
        rounds_per_eval=3,
        rounds_per_checkpoint=4,
        progress=False,
        saved_in=StoreCheckpoints(store),
    )
    rows = store.read(toy_process.IDS)
    store.close()
    return result, rows


def _finish(folder):
    result, rows = _run(folder)
    server = result.state.server
    own = server.weights.tobytes(), server.rounds, result.state.round_number, rows
    return result.resumed_from, (own, kill_sweep.outcome_of(folder))


if __name__ == "__main__":
    kill_sweep.sweep(pathlib.Path(sys.argv[1]), run=_run, finish=_finish)

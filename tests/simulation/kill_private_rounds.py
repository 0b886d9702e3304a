"""Kills a run of clients that keep variables everywhere in turn, and lets each go on.

That is at every file operation of Python's, every statement and the end of every commit in the
store, and every step of a round. Usage: kill_private_rounds.py FOLDER. Prints the report of
`kill_sweep`.
"""

from __future__ import annotations

import pathlib
import sqlite3
import sys

import kill_sweep
import private_toy

from fedpersonal import private_store
from fedpersonal.simulation import loop, run_folder
from fedpersonal.simulation.private_rounds import PrivateProcess, StoreCheckpoints

_connect = sqlite3.connect


def _connect_and_watch(*arguments, **options):
    connection = _connect(*arguments, **options)
    connection.set_trace_callback(lambda statement: kill_sweep.step())
    return connection


sqlite3.connect = _connect_and_watch


class _Store(private_store.PrivateStore):
    def commit(self, *arguments):
        super().commit(*arguments)
        kill_sweep.step()


class _Process(private_toy.Process):
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
    store = _Store.open(folder / "private.sqlite", private_toy.VARIABLES)
    result = loop.run_rounds(
        process=PrivateProcess(_Process(), store),
        cohort_fn=private_toy.cohort,
        run_folder=run,
        total_rounds=6,
        evaluate_fn=_evaluate,
        rounds_per_eval=3,
        rounds_per_checkpoint=4,
        progress=False,
        saved_in=StoreCheckpoints(store),
    )
    rows = store.read(private_toy.IDS)
    store.close()
    return result, rows


def _finish(folder):
    result, rows = _run(folder)
    server = result.state.server
    own = server.weights.tobytes(), server.rounds, result.state.round_number, rows
    return result.resumed_from, (own, kill_sweep.outcome_of(folder))


if __name__ == "__main__":
    kill_sweep.sweep(pathlib.Path(sys.argv[1]), run=_run, finish=_finish)

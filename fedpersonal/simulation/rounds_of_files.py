"""After which round the files of a run folder were written: those of two rounds are no run."""

from __future__ import annotations

import collections
import contextlib
import csv
import json
import os
import pathlib
import sqlite3
from collections.abc import Callable, Mapping

import numpy as np

from fedpersonal.errors import UserError
from fedpersonal.simulation.run_record import ABOUT, WEIGHTS, read_about, read_rows

_METRICS, _CHECKPOINTS = "metrics.csv", "checkpoints"
# Of a member of the saved model, and a column of `per_client.csv`.
ROUND = "round"


def check_rounds(folder: pathlib.Path) -> None:
    """Makes sure that all files of a finished run are of its last round.

    Args:
        folder: The run's folder. What is missing or damaged there, and files of older versions
            that name no round, are passed over.

    Raises:
        UserError: If they are of several rounds: the run has gone on since it ended, or files of
            two runs were mixed.
    """
    rounds = rounds_of_files(folder)
    if not {*rounds} - {_METRICS, _CHECKPOINTS, "local_state.sqlite"}:
        return  # The run has not ended: checkpoints are older than rows.
    names = collections.defaultdict(list)
    for name, number in rounds.items():
        names[number].append(name)
    if len(names) > 1:
        told = "; ".join(f"round {n} has {', '.join(names[n])}" for n in sorted(names))
        raise UserError(
            f"{folder} has files of several rounds: {told}. Go on with the run to its end by the "
            "command or program that began it, or put back the files of one round."
        )


def rounds_of_files(folder: pathlib.Path) -> dict[str, int]:
    """Returns the round that each file of a run folder says, by name."""
    rounds = {}
    for name, read in _READERS.items():
        # Errors are of a dozen kinds, and whoever needs a damaged file complains of it.
        with contextlib.suppress(Exception):
            path = folder / name
            found = read(path) if path.is_file() or name == _CHECKPOINTS else None
            if type(found) is int:
                rounds[name] = found
    return rounds


def _of_about(path: pathlib.Path) -> int:
    about = read_about(path.parent)
    return (about.get("metrics") or [about["round_number"]])[0]


def _of_clients(path: pathlib.Path) -> int:
    with path.open(encoding="utf-8", newline="") as file:
        number = int(next(csv.DictReader(file), {})[ROUND])
    # The model of a run's best round is that of its end, too.
    with contextlib.suppress(Exception):
        if number == read_about(path.parent)["round_number"]:
            return _of_about(path.parent / ABOUT)
    return number


def _of_checkpoints(path: pathlib.Path) -> int:
    names = [name[len("round_") : -len(".npz")] for name in os.listdir(path)]
    return max(int(name) for name in names if name.isdecimal())


def _of_weights(path: pathlib.Path) -> int:
    with np.load(path, allow_pickle=False) as file:
        return int(file[ROUND])


def _of_store(path: pathlib.Path) -> int:
    """Returns the round of the last commit; an error while somebody has the store open."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", 0, uri=True)) as store:
        return store.execute("SELECT round_number FROM run").fetchone()[0]


def _of_json(path: pathlib.Path) -> int:
    return json.loads(path.read_text(encoding="utf-8"))["rounds"]


_READERS: Mapping[str, Callable[[pathlib.Path], int]] = {
    ABOUT: _of_about,
    WEIGHTS: _of_weights,
    "summary.json": _of_json,
    "per_client.csv": _of_clients,
    "recommendations.json": _of_json,
    "local_state.sqlite": _of_store,
    _METRICS: lambda path: len(read_rows(path)[1]),
    _CHECKPOINTS: _of_checkpoints,
}

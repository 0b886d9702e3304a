"""The files in the folder of a run, and checks that a resumed run is the same run."""

from __future__ import annotations

import collections
import contextlib
import csv
import importlib.metadata
import io
import json
import logging
import os
import pathlib
import platform
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

import fedpersonal
from fedpersonal import former
from fedpersonal.errors import UserError, one_line, printable
from fedpersonal.files import damaged, digest, digest_with_row, read_json, read_text, to_json

_LOG = logging.getLogger(__name__)
# Only versions with the same format can read a run's files.
_FORMAT = 3
_PACKAGES = ("tensorflow", "tensorflow-federated", "federated-language", "numpy")
# The entry of `config.json` that describes the training clients.
TRAINING_DATA = "training_data"
# The entry of `config.json` that describes a program's training.
TRAINING = "training"
# Longest texts, in a message, of a value, and of all differences.
_LONGEST_VALUE, _LONGEST = 300, 1200
# Entries that may differ from session to session.
_SESSION = ("versions", "runtime")


def merge_config(
    path: pathlib.Path,
    options: Mapping[str, Any],
    *,
    ignore: Collection[str] = (),
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the content of `config.json` for a run that starts or, if the file exists, resumes.

    Arguments are those of `RunFolder.open`.

    Returns:
        `options`, `seed`, `data` and `num_shards` if passed, and `versions` and `runtime` of the
        first session. If those of later sessions differ, they are in the list `later_sessions`.

    Raises:
        UserError: Options, data or the number of shards differ from those of earlier sessions.
    """
    about = {name: value for name, value in (about or {}).items() if value is not None}
    unknown = about.keys() - {"data", "runtime", "num_shards"}
    if unknown:
        raise ValueError(f"about may have data, runtime and num_shards, not {sorted(unknown)}.")
    seed = options.get("seed")
    config = to_json({"options": options, "seed": seed, **about, "versions": _versions()})
    config["format"] = _FORMAT
    if not os.path.lexists(path):
        return config
    old, folder = read_config(path), path.parent
    check_same("options", old["options"], config["options"], folder, ignore)
    if "data" in old:
        check_same("data", old["data"], config.setdefault("data", old["data"]), folder)
    config.update({name: old[name] for name in (TRAINING_DATA, TRAINING) if name in old})
    if "num_shards" in old:
        shards = old["num_shards"]
        check_same("shards", shards, config.setdefault("num_shards", shards), folder)
    session, first = ({k: c[k] for k in _SESSION if k in c} for c in (config, old))
    later = old.get("later_sessions", [])
    if session not in (first, *later):
        # Runs that name no stack are older than the second stack.
        stacks = {kept["versions"].get("stack", "tff") for kept in (session, first)}
        bits = " Bits differ between stacks where XLA compiles." if len(stacks) > 1 else ""
        _LOG.warning("%s was started with %s, and resumes with %s.%s", folder, first, session, bits)
        later = [*later, session]
    common = {name: value for name, value in config.items() if name not in _SESSION}
    return {**common, **first, **({"later_sessions": later} if later else {})}


def read_num_shards(folder: str | os.PathLike) -> int | None:
    """Returns the number of shards of the run in a folder; None without a run."""
    path = pathlib.Path(folder) / "config.json"
    return read_config(path).get("num_shards") if os.path.lexists(path) else None


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """Returns the content of a `config.json`.

    Raises:
        UserError: It is missing, damaged or changed, or of another version.
    """
    if not os.path.lexists(path):
        raise UserError(f"{path.parent} is not the folder of a run: it has no {path.name}.")
    config = read_json(path, {"versions": dict})
    if config.get("format") != _FORMAT:
        version = one_line(config["versions"].get("fedpersonal"))
        raise UserError(
            f"{path.parent} holds a run of fedpersonal {version}, which version "
            f"{fedpersonal.__version__} cannot open; give another folder."
        )
    config = read_json(path, {"options": dict, "versions": dict}, checked=True)
    config["options"] = former.present_options(config["options"])
    later, shards = config.get("later_sessions", []), config.get("num_shards", 1)
    if not isinstance(later, list) or type(shards) is not int or shards < 1:
        raise damaged(path)
    return config


def check_same(
    kind: str, old: Any, new: Any, folder: pathlib.Path, ignore: Collection[str] = ()
) -> None:
    """Raises a UserError that names the parts that differ; a value may have no parts."""
    old, new = (v if isinstance(v, Mapping) else {f"the {kind}": v} for v in (old, new))
    changes = []
    for name in {**old, **new}:
        before, now = (json.dumps(v[name]) if name in v else "absent" for v in (old, new))
        if name not in ignore and before != now:
            changes.append(f"{printable(name)} was {_cut(before)} and is now {_cut(now)}")
    if changes:
        raise UserError(
            f"{folder} holds a run with other {kind}: {_cut('; '.join(changes), _LONGEST)}. "
            "Restore them or give another folder (--output_dir)."
        )


def _cut(text: str, longest: int = _LONGEST_VALUE) -> str:
    return text[:longest] + "..." * (len(text) > longest)


def _versions() -> dict[str, str]:
    """Returns the stack of packages, and the versions of the installed ones."""
    from fedpersonal import tff  # Imported here, because reading a run needs no TensorFlow.

    versions = {"python": platform.python_version(), "fedpersonal": fedpersonal.__version__}
    versions["stack"] = tff.STACK
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


_METRICS, _CHECKPOINTS = "metrics.csv", "checkpoints"
_SUMMARY, _CLIENTS = "summary.json", "per_client.csv"
# The entry of `summary.json` with the digests of the tables in the same folder.
DIGESTS = "digests"
# The round after which a file was written: an array of the saved model, a column of
# `per_client.csv`.
ROUND = "round"
# The first columns of `metrics.csv`.
FIRST_COLUMNS = ["round", "seconds"]
_NUMBER = re.compile("[0-9]{1,12}")
# The description of the saved model, which exists once a run has ended, and its required fields.
ABOUT = "model.json"
# The saved model.
WEIGHTS = "model.npz"
REQUIRED_FIELDS = ("batch_size", "seed", "round_number")


class RunRecord:
    """The files of a run, which may still be running; open it with `RunFolder.read`.

    Each access to a property reads its file, and raises a UserError if it is missing or damaged.

    Attributes:
        path: The folder.
        config_json: The file with the run's options.
        metrics_csv: The file with a row for each round.
        checkpoints: The folder of the checkpoints.
    """

    def __init__(self, path: pathlib.Path):
        """Use `RunFolder.read`, or `RunFolder.open` to write, too."""
        self.path = path
        self.config_json = path / "config.json"
        self.metrics_csv = path / "metrics.csv"
        self.checkpoints = path / "checkpoints"

    @property
    def config(self) -> dict[str, Any]:
        """The config: `options`, `seed`, `versions` and, if present, `data` and others."""
        return read_config(self.config_json)

    @property
    def summary(self) -> dict[str, Any]:
        """The summary of the run's results."""
        summary = self._read_summary()
        summary.pop(DIGESTS, None)
        return summary

    def _read_summary(self) -> dict[str, Any]:
        return read_json(self._existing(_SUMMARY, "its run has not ended"), checked=True)

    @property
    def boundary(self) -> list[dict[str, Any]]:
        """The tensors that crossed between clients and server."""
        path = self._existing("boundary.json", "its run has not begun to train")
        return read_json(path, kind=list)

    @property
    def metrics(self) -> pd.DataFrame:
        """A row for each round, with its number in the column `round`; NaN for empty cells."""
        path = self._existing("metrics.csv", "its run has not begun to train")
        text = read_text(path)
        # The last row may be incomplete, while it is written or after a kill.
        table = _read_table(path, text[: text.rfind("\n") + 1])
        if list(table.get("round", [])) != list(range(1, len(table) + 1)):
            raise damaged(path)
        for column in map(str, table):
            check_numbers(path, table, column, finite=column in FIRST_COLUMNS or "loss" in column)
        for rounds, digest_then in self._metrics_digests():
            if self.metrics_digest(rounds) != digest_then:
                raise damaged(path)
        return table

    def _metrics_digests(self) -> Iterator[tuple[int, str]]:
        """Yields the digests of `metrics.csv` at the end of the run: rounds, and their digest."""
        if os.path.lexists(self.path / ABOUT):
            rounds_and_digest = read_about(self.path).get("metrics")
            if rounds_and_digest is not None:
                yield tuple(rounds_and_digest)
        if os.path.lexists(self.path / _SUMMARY):
            summary = self._read_summary()
            recorded = _digests(summary).get(_METRICS)
            if recorded is not None:
                yield summary["rounds"], recorded

    def metrics_digest(self, rounds: int | None = None) -> str:
        """Returns the digest of the first rows of `metrics.csv`, or of all complete rows."""
        columns, rows = read_rows(self.metrics_csv)
        result = ""
        for row in rows[:rounds]:
            result = digest_with_row(result, dict(zip(columns, row)))
        return result

    @property
    def per_client(self) -> pd.DataFrame:
        """A row for each test client, with its name in the column `client`, a text."""
        path = self._existing(_CLIENTS, "its run has not ended")
        text = read_text(path)
        recorded = self.per_client_digest
        if recorded not in (None, digest(text.encode())):
            raise damaged(path)
        return _read_table(path, text, longest=len(text))  # Names can have any length.

    @property
    def per_client_digest(self) -> str | None:
        """The digest of `per_client.csv` in the summary, if both are of one round; else None."""
        if not os.path.lexists(self.path / _SUMMARY):
            return None
        summary = self._read_summary()
        # A program may evaluate its clients again after more rounds.
        with contextlib.suppress(KeyError, OSError, TypeError, ValueError, csv.Error):
            if summary["rounds"] != _round_of_clients(self.path / _CLIENTS):
                return None
        return _digests(summary).get(_CLIENTS)

    def _existing(self, name: str, otherwise: str) -> pathlib.Path:
        path = self.path / name
        if not os.path.lexists(path):
            raise UserError(f"{self.path} has no {name}: {otherwise}.")
        return path


def read_rows(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and the complete rows of a `metrics.csv`; none if there is no file.

    Raises:
        UserError: The file is no `metrics.csv`.
    """
    text = read_text(path) if os.path.lexists(path) else ""
    if not text:
        return [], []
    complete = text[: text.rfind("\n") + 1]
    try:
        columns, *rows = csv.reader(io.StringIO(complete, newline="")) if complete else [[]]
    except csv.Error as error:
        raise damaged(path) from error
    if columns[:2] != FIRST_COLUMNS:
        raise UserError(f"{path} is not the metrics.csv of a run.")
    return columns, [row for row in rows if len(row) == len(columns) and _NUMBER.fullmatch(row[0])]


def table_digests(record: RunRecord) -> dict[str, str]:
    """Returns the digests of the tables of a run's folder, by file name."""
    clients, digests = record.path / _CLIENTS, {}
    if clients.is_file():
        digests[_CLIENTS] = digest(read_text(clients).encode())
    if record.metrics_csv.is_file():
        digests[_METRICS] = record.metrics_digest()
    return digests


def _digests(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the digests in a summary; empty for summaries of earlier versions."""
    digests = summary.get(DIGESTS)
    return digests if isinstance(digests, dict) else {}


def check_numbers(
    path: pathlib.Path, table: pd.DataFrame, column: str, *, finite: bool = False
) -> None:
    """Raises a UserError that names a column's first cell that is no number, if there is one.

    Args:
        path: The file of the table, whose first column names its rows.
        table: The table.
        column: The column; an empty cell, which is NaN, is a number.
        finite: Whether to refuse infinities, too.
    """
    values = pd.to_numeric(table[column], errors="coerce").to_numpy(np.float64)
    is_wrong = np.isnan(values) & table[column].notna().to_numpy()
    if finite:
        is_wrong |= np.isinf(values)
    if is_wrong.any():
        place = int(np.flatnonzero(is_wrong)[0])
        row = one_line(str(table.iloc[place, 0]))
        raise UserError(
            f"{damaged(path)} Its column {column} is "
            f"{one_line(repr(table[column].tolist()[place]))} in the row of "
            f"{table.columns[0]} {row}, which is no {'finite ' if finite else ''}number."
        )


def read_about(path: pathlib.Path) -> dict[str, Any]:
    """Reads the description of the saved model in a run's folder.

    Raises:
        UserError: If the run has not ended, or the file is damaged.
    """
    if not os.path.lexists(path / ABOUT):
        raise UserError(f"{path}: the run has not ended ({path / ABOUT}).")
    about = read_json(path / ABOUT, dict.fromkeys(REQUIRED_FIELDS, int), checked=True)
    metrics = about.get("metrics")
    is_pair = isinstance(metrics, list) and [type(part) for part in metrics] == [int, str]
    in_range = about["batch_size"] >= 1 and -(2**31) <= about["seed"] < 2**31
    if not in_range or (metrics is not None and not is_pair):
        raise damaged(path / ABOUT)
    return about


def _read_table(path: pathlib.Path, text: str, *, longest: int = 2**17) -> pd.DataFrame:
    usual = csv.field_size_limit(longest)
    try:
        # Pandas would accept rows of other lengths.
        columns, *rows = [*csv.reader(io.StringIO(text, newline=""))] or [[]]
        if any(len(row) != len(columns) for row in rows):
            raise damaged(path)
        return pd.read_csv(
            io.StringIO(text, newline=""),
            dtype={"client": str},
            float_precision="round_trip",
            keep_default_na=False,
            na_values={name: ["", "nan"] for name in columns if name != "client"},
        )
    except (ValueError, csv.Error) as error:
        raise damaged(path) from error
    finally:
        csv.field_size_limit(usual)


def check_rounds(folder: pathlib.Path) -> None:
    """Checks that all files of a finished run are of its last round.

    Args:
        folder: The run's folder. Missing or damaged files, and files of older versions that name no
            round, are ignored.

    Raises:
        UserError: If they are of several rounds: the run was resumed after it had ended, or files
            of two runs were mixed.
    """
    rounds = rounds_of_files(folder)
    if not {*rounds} - {_METRICS, _CHECKPOINTS, "local_state.sqlite"}:
        return  # The run has not ended: checkpoints are older than rows.
    names = collections.defaultdict(list)
    for name, number in rounds.items():
        names[number].append(name)
    if len(names) > 1:
        files = "; ".join(f"round {n} has {', '.join(names[n])}" for n in sorted(names))
        raise UserError(
            f"{folder} has files of several rounds: {files}. Resume the run to its end with the "
            "command or program that started it, or restore the files of one round."
        )


def rounds_of_files(folder: pathlib.Path) -> dict[str, int]:
    """Returns the round of each file of a run folder that names one, by file name."""
    rounds = {}
    for name, read in _READERS.items():
        # Damage causes errors of many kinds; code that needs the file reports them.
        with contextlib.suppress(Exception):
            path = folder / name
            round_number = read(path) if path.is_file() or name == _CHECKPOINTS else None
            if type(round_number) is int:
                rounds[name] = round_number
    return rounds


def _round_of_about(path: pathlib.Path) -> int:
    about = read_about(path.parent)
    return (about.get("metrics") or [about["round_number"]])[0]


def _round_of_clients(path: pathlib.Path) -> int:
    with path.open(encoding="utf-8", newline="") as file:
        number = int(next(csv.DictReader(file), {})[ROUND])
    # If the model is that of the best round, use the last round, as for other files.
    with contextlib.suppress(Exception):
        if number == read_about(path.parent)["round_number"]:
            return _round_of_about(path.parent / ABOUT)
    return number


def _round_of_checkpoints(path: pathlib.Path) -> int:
    names = [name[len("round_") : -len(".npz")] for name in os.listdir(path)]
    return max(int(name) for name in names if name.isdecimal())


def _round_of_weights(path: pathlib.Path) -> int:
    with np.load(path, allow_pickle=False) as file:
        return int(file[ROUND])


def _round_of_store(path: pathlib.Path) -> int:
    """Returns the round of the last commit; raises an error while the store is open."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", 0, uri=True)) as store:
        return store.execute("SELECT round_number FROM run").fetchone()[0]


def _round_of_json(path: pathlib.Path) -> int:
    return json.loads(path.read_text(encoding="utf-8"))["rounds"]


_READERS: Mapping[str, Callable[[pathlib.Path], int]] = {
    ABOUT: _round_of_about,
    WEIGHTS: _round_of_weights,
    _SUMMARY: _round_of_json,
    _CLIENTS: _round_of_clients,
    "recommendations.json": _round_of_json,
    "local_state.sqlite": _round_of_store,
    _METRICS: lambda path: len(read_rows(path)[1]),
    _CHECKPOINTS: _round_of_checkpoints,
}

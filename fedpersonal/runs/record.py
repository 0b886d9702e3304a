"""What the folder of a run says of it, and whether a run that goes on is the same one."""

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
from fedpersonal.errors import UserError, escaped, one_line
from fedpersonal.files import damaged, digest, digest_with_row, read_json, read_text, to_json

_LOG = logging.getLogger(__name__)
# What a run writes is read by the versions that write the same.
_FORMAT = 3
_PACKAGES = ("tensorflow", "tensorflow-federated", "federated-language", "numpy")
# The entry of `config.json` with the clients that train.
TRAINING_DATA = "training_data"
# That with what a program trains, and how.
TRAINING = "training"
# So much of a value, and of all that differs, is said.
_LONGEST_VALUE, _LONGEST = 300, 1200
# What may differ from session to session.
_SESSION = ("versions", "runtime")


def settle(
    path: pathlib.Path,
    options: Mapping[str, Any],
    *,
    ignore: Collection[str] = (),
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the content of `config.json` for a run that starts or, if the file exists, goes on.

    Arguments are those of `RunFolder.open`.

    Returns:
        `options`, `seed`, `data` and `num_shards` if given, and `versions` and `runtime` of the
        first session; those of later ones, where they differ, in the list `later_sessions`.

    Raises:
        UserError: Options, data or the number of shards differ from those of former sessions.
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
        # Runs that name no stack are older than the second one.
        stacks = {kept["versions"].get("stack", "tff") for kept in (session, first)}
        bits = " Bits differ between stacks where XLA compiles." if len(stacks) > 1 else ""
        _LOG.warning("%s was started with %s, and goes on with %s.%s", folder, first, session, bits)
        later = [*later, session]
    common = {name: value for name, value in config.items() if name not in _SESSION}
    return {**common, **first, **({"later_sessions": later} if later else {})}


def read_num_shards(folder: str | os.PathLike) -> int | None:
    """Returns into how many shards the run in a folder divides its cohorts; None without a run."""
    path = pathlib.Path(folder) / "config.json"
    return read_config(path).get("num_shards") if os.path.lexists(path) else None


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """Returns the content of a `config.json`.

    Raises:
        UserError: It is missing, is damaged or changed, or is that of another version.
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
    what: str, old: Any, new: Any, folder: pathlib.Path, ignore: Collection[str] = ()
) -> None:
    """Raises a UserError that names the parts that differ; a value may have no parts."""
    old, new = (v if isinstance(v, Mapping) else {f"the {what}": v} for v in (old, new))
    changes = []
    for name in {**old, **new}:
        then, now = (json.dumps(v[name]) if name in v else "absent" for v in (old, new))
        if name not in ignore and then != now:
            changes.append(f"{escaped(name)} was {_cut(then)} and is now {_cut(now)}")
    if changes:
        raise UserError(
            f"{folder} holds a run with other {what}: {_cut('; '.join(changes), _LONGEST)}. "
            "Restore them or give another folder (--output_dir)."
        )


def _cut(text: str, longest: int = _LONGEST_VALUE) -> str:
    return text[:longest] + "..." * (len(text) > longest)


def _versions() -> dict[str, str]:
    """Returns the stack of packages, and the versions of those that are installed."""
    from fedpersonal import tff  # It loads TensorFlow; whoever only reads runs has no need of it.

    versions = {"python": platform.python_version(), "fedpersonal": fedpersonal.__version__}
    versions["stack"] = tff.STACK
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


_METRICS, _CHECKPOINTS = "metrics.csv", "checkpoints"
_SUMMARY, _CLIENTS = "summary.json", "per_client.csv"
# The entry of `summary.json` with the digests of the tables beside it.
DIGESTS = "digests"
# The round after which a file was written: a member of the saved model, a column of
# `per_client.csv`.
ROUND = "round"
# Those of `metrics.csv`.
FIRST_COLUMNS = ["round", "seconds"]
_NUMBER = re.compile("[0-9]{1,12}")
# What says that a run has ended, and what it always says.
ABOUT = "model.json"
# The model itself.
WEIGHTS = "model.npz"
KNOWN = ("batch_size", "seed", "round_number")


class RunRecord:
    """The files of a run, which may still go on; open it with `RunFolder.read`.

    Each property reads its file anew, and raises a UserError if it is missing or damaged.

    Attributes:
        path: The folder.
        config_json: The file with what was asked.
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
        """What was asked: `options`, `seed`, `versions` and, where known, `data` and others."""
        return read_config(self.config_json)

    @property
    def summary(self) -> dict[str, Any]:
        """What came of the run."""
        summary = self._read_summary()
        summary.pop(DIGESTS, None)
        return summary

    def _read_summary(self) -> dict[str, Any]:
        return read_json(self._existing(_SUMMARY, "its run has not ended"), checked=True)

    @property
    def boundary(self) -> list[dict[str, Any]]:
        """What crossed between clients and server, a tensor each."""
        path = self._existing("boundary.json", "its run has not begun to train")
        return read_json(path, kind=list)

    @property
    def metrics(self) -> pd.DataFrame:
        """A row a round, the number of which is the column `round`; NaN where nothing was."""
        path = self._existing("metrics.csv", "its run has not begun to train")
        text = read_text(path)
        # The last row may be half written, or about to be.
        table = _read_table(path, text[: text.rfind("\n") + 1])
        if list(table.get("round", [])) != list(range(1, len(table) + 1)):
            raise damaged(path)
        for column in map(str, table):
            check_numbers(path, table, column, finite=column in FIRST_COLUMNS or "loss" in column)
        for rounds, known in self._metrics_digests():
            if self.metrics_digest(rounds) != known:
                raise damaged(path)
        return table

    def _metrics_digests(self) -> Iterator[tuple[int, str]]:
        """Yields what the end of the run wrote down of `metrics.csv`: rounds, and their digest."""
        if os.path.lexists(self.path / ABOUT):
            known = read_about(self.path).get("metrics")
            if known is not None:
                yield tuple(known)
        if os.path.lexists(self.path / _SUMMARY):
            summary = self._read_summary()
            known = _digests(summary).get(_METRICS)
            if known is not None:
                yield summary["rounds"], known

    def metrics_digest(self, rounds: int | None = None) -> str:
        """Returns the digest of the first rows of `metrics.csv`, or of all that are complete."""
        columns, rows = read_rows(self.metrics_csv)
        found = ""
        for row in rows[:rounds]:
            found = digest_with_row(found, dict(zip(columns, row)))
        return found

    @property
    def per_client(self) -> pd.DataFrame:
        """A row a test client, the name of which is the column `client`, a text."""
        path = self._existing(_CLIENTS, "its run has not ended")
        text = read_text(path)
        known = self.per_client_digest
        if known not in (None, digest(text.encode())):
            raise damaged(path)
        return _read_table(path, text, longest=len(text))  # Names have any length.

    @property
    def per_client_digest(self) -> str | None:
        """The digest of `per_client.csv` in a summary of its round; None where there is none."""
        if not os.path.lexists(self.path / _SUMMARY):
            return None
        summary = self._read_summary()
        # A program may evaluate its clients again after the run has gone on.
        with contextlib.suppress(KeyError, OSError, TypeError, ValueError, csv.Error):
            if summary["rounds"] != _of_clients(self.path / _CLIENTS):
                return None
        return _digests(summary).get(_CLIENTS)

    def _existing(self, name: str, otherwise: str) -> pathlib.Path:
        path = self.path / name
        if not os.path.lexists(path):
            raise UserError(f"{self.path} has no {name}: {otherwise}.")
        return path


def read_rows(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and the complete rows of a `metrics.csv`, none where there is no file.

    Raises:
        UserError: It is something else.
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
    clients, found = record.path / _CLIENTS, {}
    if clients.is_file():
        found[_CLIENTS] = digest(read_text(clients).encode())
    if record.metrics_csv.is_file():
        found[_METRICS] = record.metrics_digest()
    return found


def _digests(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the digests that a summary has; those of earlier versions have none."""
    known = summary.get(DIGESTS)
    return known if isinstance(known, dict) else {}


def check_numbers(
    path: pathlib.Path, table: pd.DataFrame, column: str, *, finite: bool = False
) -> None:
    """Raises a UserError that names the first cell of a column that is no number.

    Args:
        path: The file of the table, whose first column names its rows.
        table: The table.
        column: The column; an empty cell, which is NaN, is a number.
        finite: Whether infinities are refused, too.
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
    """Reads what `saved_model` says of the model in a run's folder.

    Raises:
        UserError: If the run has not ended, or the file is damaged.
    """
    if not os.path.lexists(path / ABOUT):
        raise UserError(f"{path}: the run has not ended ({path / ABOUT}).")
    about = read_json(path / ABOUT, dict.fromkeys(KNOWN, int), checked=True)
    metrics = about.get("metrics")
    is_pair = isinstance(metrics, list) and [type(part) for part in metrics] == [int, str]
    in_range = about["batch_size"] >= 1 and -(2**31) <= about["seed"] < 2**31
    if not in_range or (metrics is not None and not is_pair):
        raise damaged(path / ABOUT)
    return about


def _read_table(path: pathlib.Path, text: str, *, longest: int = 2**17) -> pd.DataFrame:
    usual = csv.field_size_limit(longest)
    try:
        # Pandas takes rows of other lengths as they are.
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
    _SUMMARY: _of_json,
    _CLIENTS: _of_clients,
    "recommendations.json": _of_json,
    "local_state.sqlite": _of_store,
    _METRICS: lambda path: len(read_rows(path)[1]),
    _CHECKPOINTS: _of_checkpoints,
}

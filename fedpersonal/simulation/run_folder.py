"""The folder of a run: what was asked, what came of it."""

from __future__ import annotations

import fcntl
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from fedpersonal.atomic_files import atomic_write, to_json, write_json
from fedpersonal.errors import UserError
from fedpersonal.simulation import run_config
from fedpersonal.simulation.run_record import RunRecord

# Options that may change between the sessions of one run.
MAY_DIFFER = frozenset({"output_dir", "total_rounds", "rounds_per_checkpoint"})

# Locks held by this process, by folder; they end with the process.
_locks: dict[pathlib.Path, int] = {}


class RunFolder(RunRecord):
    """One run on disk; open it with `RunFolder.open`, or to look at it with `RunFolder.read`."""

    @classmethod
    def open(
        cls,
        path: str | os.PathLike,
        options: Mapping[str, Any],
        *,
        ignore: Collection[str] = MAY_DIFFER,
        about: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """Creates the folder of a run, or finds it again.

        Args:
            path: The folder.
            options: The options of the run by name.
            ignore: The options that may differ from those of the run's former sessions.
            about: What else there is to know, all of it optional: `data`, a fingerprint of the
                data, or one for each part by name, and `num_shards`, which must be the same in all
                sessions; `runtime`, which may differ.

        Returns:
            The folder, with `config.json` written.

        Raises:
            UserError: The folder belongs to a run with other options or data, or to one still
                going on.
        """
        try:
            folder = cls(pathlib.Path(path).resolve())
            folder.path.mkdir(parents=True, exist_ok=True)
            _lock(folder.path)
        except BlockingIOError as error:
            raise UserError(f"Another process is running in {path}; wait or end it.") from error
        except OSError as error:
            raise UserError(f"Cannot write to the run folder {path}: {error.strerror}.") from error
        if folder.metrics_csv.exists() and not folder.config_json.exists():
            raise UserError(f"{folder.path} has a metrics.csv that is not a run's; give another.")
        config = run_config.settle(folder.config_json, options, ignore=ignore, about=about)
        write_json(folder.config_json, config, checked=True)
        return folder

    def check_data(self, data: Mapping[str, Any]) -> None:
        """Writes to `config.json` which data the run trains on, or makes sure that it still does.

        Args:
            data: What tells them from others, part by part, such as of `describe_clients`.

        Raises:
            UserError: Former sessions had other data; it names the parts that differ.
        """
        config = self.config
        known = config.setdefault(run_config.TRAINING_DATA, to_json(data))
        run_config.check_same("data", known, to_json(data), self.path)
        write_json(self.config_json, config, checked=True)

    @staticmethod
    def read(path: str | os.PathLike) -> RunRecord:
        """Opens a folder to read what there is, whether or not its run still goes on.

        Args:
            path: The folder; nothing in it is written or locked.

        Raises:
            UserError: It is not the folder of a run.
        """
        record = RunRecord(pathlib.Path(path).resolve())
        run_config.read_config(record.config_json)
        return record

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json`."""
        write_json(self.path / "summary.json", summary, checked=True)

    def write_boundary(self, boundary: Sequence[Any]) -> None:
        """Writes `boundary.json`, an object a tensor."""
        write_json(self.path / "boundary.json", boundary)

    def write_per_client(self, columns: Mapping[str, Any]) -> None:
        """Writes `per_client.csv`: columns of as many values by name, NaN as an empty cell."""
        with atomic_write(self.path / "per_client.csv") as file:
            pd.DataFrame(columns).to_csv(file, index=False, lineterminator="\n")


def _lock(folder: pathlib.Path) -> None:
    """Keeps other processes out of a run folder until this one ends, or raises BlockingIOError."""
    if folder in _locks:
        return
    file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(file)
        raise
    _locks[folder] = file

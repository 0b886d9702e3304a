"""The folder of a run: what was asked, what came of it."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fedpersonal import atomic_files
from fedpersonal.errors import UserError
from fedpersonal.simulation import json_values, run_config

# Flags that may change between the sessions of one run.
MAY_DIFFER = frozenset({"output_dir", "total_rounds", "rounds_per_checkpoint"})

# Locks held by this process, by folder; they end with the process.
_locks: dict[pathlib.Path, int] = {}


class RunFolder:
    """One run on disk; open it with `RunFolder.open`.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: pathlib.Path):
        """Use `open`."""
        self.path = path

    @classmethod
    def open(
        cls,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        *,
        ignore: Collection[str] = MAY_DIFFER,
    ) -> RunFolder:
        """Creates the folder of a run, or finds it again.

        Args:
            path: The folder.
            config: The flags of the run by name.
            ignore: The flags that may differ from those of the run's former sessions.

        Returns:
            The folder, with `config.json` written.

        Raises:
            UserError: The folder belongs to a run with other flags, or to one still going on.
        """
        folder = cls(pathlib.Path(path).resolve())
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            _lock(folder.path)
        except BlockingIOError as error:
            raise UserError(f"Another process is running in {path}; wait or end it.") from error
        except OSError as error:
            raise UserError(f"Cannot write to the run folder {path}: {error.strerror}.") from error
        config_json = folder.path / "config.json"
        if folder.metrics_csv.exists() and not config_json.exists():
            raise UserError(f"{folder.path} has a metrics.csv that is not a run's; give another.")
        folder._write_json("config.json", run_config.settle(config_json, config, ignore))
        return folder

    @property
    def metrics_csv(self) -> pathlib.Path:
        """The file with a row for each round."""
        return self.path / "metrics.csv"

    @property
    def checkpoints(self) -> pathlib.Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json`."""
        self._write_json("summary.json", summary)

    def write_boundary(self, boundary: Any) -> None:
        """Writes `boundary.json`."""
        self._write_json("boundary.json", boundary)

    def write_per_client(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes `per_client.csv`; the first row names the columns."""
        rows = list(rows)
        with atomic_files.atomic_write(self.path / "per_client.csv") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def _write_json(self, name: str, value: Any) -> None:
        with atomic_files.atomic_write(self.path / name) as file:
            json.dump(json_values.to_json(value), file, indent=2, allow_nan=False)
            file.write("\n")


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

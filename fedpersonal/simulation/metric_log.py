"""The metrics of a run, a row a round: `metrics.csv`, and the same for TensorBoard."""

from __future__ import annotations

import csv
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpersonal import atomic_files
from fedpersonal.errors import UserError
from fedpersonal.simulation import tensorboard_events

_FIRST_COLUMNS = ["round", "seconds"]


class MetricLog:
    """Appends rows to `metrics.csv` and scalars to TensorBoard events beside it.

    A metric may appear in a later round for the first time: the file is then written anew with one
    more column. Otherwise a row costs one write.
    """

    def __init__(self, path: str | os.PathLike, *, after_round: int = 0):
        """Opens the log to go on after a round; rows of later rounds are removed.

        Args:
            path: The CSV file. It is made if needed.
            after_round: The round of the checkpoint from which the run goes on, or 0.

        Raises:
            UserError: Rows of rounds up to `after_round` are missing.
        """
        self._path = pathlib.Path(path)
        columns, rows = _read(self._path)
        self._columns = columns or list(_FIRST_COLUMNS)
        rows = [row for row in rows if int(row[0]) <= after_round]
        if [int(row[0]) for row in rows] != list(range(1, after_round + 1)):
            raise UserError(
                f"{self._path} must have the rounds 1 to {after_round}, each once, for the run to "
                "go on; restore the file or start a new folder."
            )
        self._seconds = [float(row[1]) for row in rows]
        self._rewrite(rows)
        self._events = tensorboard_events.EventFile(self._path.parent, after_step=after_round)

    def append(self, round_number: int, seconds: float, metrics: Mapping[str, Any]) -> None:
        """Writes the row of a round.

        Args:
            round_number: The round.
            seconds: How long its training took.
            metrics: Numbers by name.
        """
        new_columns = [name for name in metrics if name not in self._columns]
        if new_columns:
            _, rows = _read(self._path)
            self._columns += new_columns
            self._rewrite(rows)
        seconds = round(seconds, 6)
        cells = {"round": str(round_number), "seconds": str(seconds)}
        cells.update((name, _show(value)) for name, value in metrics.items())
        self._writer.writerow([cells.get(name, "") for name in self._columns])
        self._file.flush()
        self._seconds.append(seconds)
        self._events.write(round_number, {"seconds": seconds, **metrics})

    def sync(self) -> None:
        """Returns when all rows are on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        self._events.close()

    @property
    def median_seconds(self) -> float:
        """The median over all rounds of the run of the seconds that a round took."""
        return float(np.median(self._seconds)) if self._seconds else 0.0

    def _rewrite(self, rows: list[list[str]]) -> None:
        """Writes the whole file and opens it for further rows."""
        width = len(self._columns)
        with atomic_files.atomic_write(self._path) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self._columns)
            writer.writerows(row + [""] * (width - len(row)) for row in rows)
        if hasattr(self, "_file"):
            self._file.close()
        self._file = open(self._path, "a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")


def _read(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and the complete rows of a log."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if not text:
        return [], []
    complete = text[: text.rfind("\n") + 1]
    columns, *rows = csv.reader(complete.splitlines()) if complete else [[]]
    if columns[:2] != _FIRST_COLUMNS:
        raise UserError(f"{path} is not the metrics.csv of a run.")
    return columns, [row for row in rows if len(row) == len(columns) and row[0].isdigit()]


def _show(value: Any) -> str:
    """Returns the shortest text from which a number of its type can be read back."""
    if isinstance(value, (np.ndarray, np.generic)):
        return str(np.asarray(value)[()])
    return repr(value)

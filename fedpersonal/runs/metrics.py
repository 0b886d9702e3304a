"""The metrics of a run, with a row for each round: `metrics.csv`."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from fedpersonal.files import atomic_write, damaged, digest_with_row, report_write_errors
from fedpersonal.runs.record import FIRST_COLUMNS, read_rows
from fedpersonal.runs.state import Callback, RunState


class MetricLog(Callback):
    """Appends rows to `metrics.csv`.

    If a metric first appears in a later round, the file is written again with one more column.
    Otherwise a row takes one write.

    Attributes:
        digest: The digest of all rows, which checkpoints store.
    """

    remembers = ("digest",)
    digest = ""
    _file: IO[str] | None = None

    def on_start(self, run: RunState) -> None:
        """Opens the file, or makes it, and removes rows after the round that the run has reached.

        Raises:
            UserError: Rows of earlier rounds are missing or changed.
        """
        self._path = run.folder.metrics_csv
        columns, rows = read_rows(self._path)
        self._columns = columns or list(FIRST_COLUMNS)
        rows = [row for row in rows if int(row[0]) <= run.round_number]
        if [int(row[0]) for row in rows] != list(range(1, run.round_number + 1)):
            raise damaged(self._path)
        digest = ""
        for row in rows:
            digest = digest_with_row(digest, dict(zip(self._columns, row)))
        if digest != self.digest:
            raise damaged(self._path)
        self._seconds = [float(row[1]) for row in rows]
        self._rewrite(rows)

    def on_round_end(self, run: RunState) -> None:
        """Writes the row of a round."""
        new_columns = [name for name in run.metrics if name not in self._columns]
        if new_columns:
            _, rows = read_rows(self._path)
            self._columns += new_columns
            self._rewrite(rows)
        seconds = round(run.seconds, 6)
        cells = {"round": str(run.round_number), "seconds": str(seconds)}
        cells.update((name, _show(value)) for name, value in run.metrics.items())
        assert self._file
        with report_write_errors(self._path):
            _write(self._file, [[cells.get(name, "") for name in self._columns]])
            self._file.flush()
        self._seconds.append(seconds)
        self.digest = digest_with_row(self.digest, cells)

    def on_end(self, run: RunState, error: BaseException | None) -> None:
        """Closes the file."""
        if self._file:
            with report_write_errors(self._path):
                self._file.close()

    @property
    def median_seconds(self) -> float:
        """The median duration of a round in seconds, over all rounds of the run."""
        return float(np.median(self._seconds)) if self._seconds else 0.0

    def _rewrite(self, rows: Sequence[list[str]]) -> None:
        """Writes the whole file and opens it for further rows."""
        width = len(self._columns)
        with atomic_write(self._path) as file:
            _write(file, [self._columns, *(row + [""] * (width - len(row)) for row in rows)])
        if self._file:
            self._file.close()
        self._file = open(self._path, "a", encoding="utf-8", newline="")


def _write(file: IO[str], rows: Sequence[list[str]]) -> None:
    csv.writer(file, lineterminator="\n").writerows(rows)


def _show(value: Any) -> str:
    """Returns the shortest text from which a number of its type can be restored."""
    if isinstance(value, (np.ndarray, np.generic)):
        return str(np.asarray(value)[()])
    return repr(value)

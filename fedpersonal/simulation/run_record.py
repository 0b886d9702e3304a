"""What the folder of a run says of it, to be read."""

from __future__ import annotations

import csv
import io
import json
import os
import pathlib
import re
import zlib
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedpersonal.atomic_files import read_json, read_text
from fedpersonal.errors import UserError, one_line, quoted
from fedpersonal.simulation import run_config

# Those of `metrics.csv`.
FIRST_COLUMNS = ["round", "seconds"]
_ROUND = re.compile("[0-9]{1,12}")
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
        return run_config.read_config(self.config_json)

    @property
    def summary(self) -> dict[str, Any]:
        """What came of the run."""
        return read_json(self._existing("summary.json", "its run has not ended"), checked=True)

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
            raise UserError(f"{path} is damaged: its rounds are not 1 to {len(table)}.")
        for name in table.columns[[kind.kind not in "biuf" for kind in table.dtypes]]:
            raise UserError(f"{path} is damaged: its column {quoted(name)} has what is no number.")
        return table

    def metrics_checksum(self, rounds: int | None = None) -> int:
        """Returns the checksum of the first rows of `metrics.csv`, or of all that are complete."""
        columns, rows = read_rows(self.metrics_csv)
        checksum = 0
        for row in rows[:rounds]:
            checksum = add_to_checksum(checksum, dict(zip(columns, row)))
        return checksum

    @property
    def per_client(self) -> pd.DataFrame:
        """A row a test client, the name of which is the column `client`, a text."""
        path = self._existing("per_client.csv", "its run has not ended")
        text = read_text(path)
        return _read_table(path, text, longest=len(text))  # Names have any length.

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
        raise UserError(f"{path} is damaged: {one_line(error)}.") from error
    if columns[:2] != FIRST_COLUMNS:
        raise UserError(f"{path} is not the metrics.csv of a run.")
    return columns, [row for row in rows if len(row) == len(columns) and _ROUND.fullmatch(row[0])]


def read_about(path: pathlib.Path) -> dict[str, Any]:
    """Reads what `saved_model` says of the model in a run's folder.

    Raises:
        UserError: If the run has not ended, or the file is damaged.
    """
    if not os.path.lexists(path / ABOUT):
        raise UserError(f"{path}: the run has not ended ({path / ABOUT}).")
    about = read_json(path / ABOUT, dict.fromkeys(KNOWN, int), checked=True)
    if about["batch_size"] < 1 or not -(2**31) <= about["seed"] < 2**31:
        raise UserError(f"{path / ABOUT} is damaged: its 'batch_size' or 'seed' is out of range.")
    metrics = about.get("metrics")
    is_pair = isinstance(metrics, list) and [type(number) for number in metrics] == [int, int]
    if metrics is not None and not is_pair:
        raise UserError(f"{path / ABOUT} is damaged: its 'metrics' is of another type.")
    return about


def add_to_checksum(checksum: int, cells: Mapping[str, str]) -> int:
    """Returns the checksum of the rows before and of a row with these cells, empty ones aside."""
    row = json.dumps({name: cell for name, cell in cells.items() if cell}, sort_keys=True)
    return zlib.crc32(row.encode(), checksum)


def _read_table(path: pathlib.Path, text: str, *, longest: int = 2**17) -> pd.DataFrame:
    usual = csv.field_size_limit(longest)
    try:
        # Pandas takes rows of other lengths as they are.
        columns, *rows = [*csv.reader(io.StringIO(text, newline=""))] or [[]]
        for number, row in enumerate(rows, start=1):
            if len(row) != len(columns):
                raise UserError(
                    f"{path} is damaged: row {number} has {len(row)} cells, the first line "
                    f"{len(columns)}."
                )
        return pd.read_csv(
            io.StringIO(text, newline=""),
            converters={"client": str},
            float_precision="round_trip",
            keep_default_na=False,
            na_values=["", "nan"],
        )
    except UserError:
        raise
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path} is damaged: {one_line(error)}.") from error
    finally:
        csv.field_size_limit(usual)

"""Columns of a table of texts: who wrote what and when, and which rows are of use."""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedpersonal.data.lenient_tables import read_lenient_table
from fedpersonal.data.table_files import TextTable
from fedpersonal.errors import UserError


def read_text_table(
    path: str | os.PathLike, columns: Sequence[str], *, time_column: str | None
) -> TextTable:
    """Reads some columns and that of the times, as `read_lenient_table` does.

    Args:
        path: The file; its extension tells the format, and `.gz` after it the compression.
        columns: Names of columns that must be there.
        time_column: The column of the times; None for none. "time", which is the default of
            all readers, may be missing from the file, any other name may not.

    Raises:
        UserError: If the file as a whole cannot be read, a column is not there, or two are the
            same.
    """
    required, optional = list(columns), []
    if time_column is not None:
        (optional if time_column == "time" else required).append(time_column)
    names = [*required, *optional]
    if len(set(names)) < len(names):
        raise UserError(f"the columns to read must be different ones, got {', '.join(names)}")
    return read_lenient_table(path, required, optional=optional)


def row_times(table: TextTable, column: str | None) -> np.ndarray:
    """The rows' times, (n,) float64, NaN where unreadable; zeros if there is no column.

    They are numbers or dates, whichever more rows can be read as.
    """
    if column not in table.columns:
        return np.zeros(len(next(iter(table.columns.values()))))
    texts = table.columns[column]
    numbers = pd.to_numeric(texts.categories, errors="coerce").to_numpy(np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    dates = pd.to_datetime(texts.categories, format="ISO8601", errors="coerce", utc=True)
    dates = np.where(dates.isna(), np.nan, dates.asi8)
    return max(
        (numbers[texts.codes], dates[texts.codes]), key=lambda times: np.isfinite(times).sum()
    )


def is_blank(texts: pd.Categorical) -> np.ndarray:
    """Where there is nothing but white space: (n,) bool."""
    return np.array([not text.strip() for text in texts.categories], bool)[texts.codes]


def usable_rows(
    table: TextTable, unusable: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, collections.Counter]:
    """Chooses the rows that nothing is wrong with.

    Args:
        table: The table, which knows what lines are missing from it.
        unusable: What can be wrong, and where it is: (n,) bool.

    Returns:
        Which rows are usable, (n,) bool, and how many lines and rows are not, by the first
        thing that is wrong with them.

    Raises:
        UserError: If there is no usable row.
    """
    report = collections.Counter({f"lines left out: {k}": n for k, n in table.skipped.items()})
    usable = count_unusable(unusable, report)
    if not usable.any():
        reasons = ", ".join(f"{count} {what}" for what, count in report.items() if count)
        raise UserError(
            f"{table.path}: no row can be used, the first is line {table.line_of(0)}: {reasons}"
        )
    return usable, report


def count_unusable(unusable: Mapping[str, np.ndarray], report: collections.Counter) -> np.ndarray:
    """Returns which rows nothing is wrong with, (n,) bool, and adds the others to the report.

    Args:
        unusable: What can be wrong, and where it is: (n,) bool.
        report: What is added to, a row by the first thing that is wrong with it.
    """
    usable = np.ones(len(next(iter(unusable.values()))), bool)
    for what, wrong in unusable.items():
        report[what] += int((wrong & usable).sum())
        usable &= ~wrong
    return usable

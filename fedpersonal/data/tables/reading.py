"""Columns of tables, of the types that are wanted; bad rows are refused or counted."""

from __future__ import annotations

import array
import collections
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from fedpersonal.data.checks import has_nul, is_unicode
from fedpersonal.data.tables.files import BadRow, Column, TableFile, check_columns
from fedpersonal.data.tables.lines import memory_for
from fedpersonal.errors import UserError, check_choice, counted, escaped, listed, quoted

_WRONG = {
    "text": "is empty",
    "real": "is not a finite number",
    "time": "is neither a number nor an ISO 8601 date",
}
_WRONG["order"] = _WRONG["time"]
_BLOCK = 1 << 8  # Rows; of many more, more memory is touched than the caches hold.


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Some columns of a file's usable rows.

    Attributes:
        file: The file.
        wanted: The columns that were wanted of it.
        columns: The columns that are there by name, (num_rows,) each: a `pandas.Categorical` of
            str for text, its categories in alphabetical order, else an array: float32 for `real`,
            float64 seconds for `time`, float64 for `order`.
        report: What was left out: why, and how many times.
        rows: (num_rows,) int64: which of the file's well-formed rows these are, from 0.
    """

    file: TableFile
    wanted: Sequence[Column]
    columns: dict[str, pd.Categorical | np.ndarray]
    report: Mapping[str, int]
    rows: np.ndarray

    @property
    def name(self) -> str:
        """The file's name without its folder and extensions."""
        return escaped(os.path.basename(self.file.path).split(".")[0])

    def order(self, column: str | None) -> np.ndarray:
        """A column of times, or zeros where there is none: (num_rows,) float64."""
        return self.columns[column] if column in self.columns else np.zeros(self.rows.size)

    def refuse(self, column: str, wrong: np.ndarray, why: str) -> None:
        """Raises a `UserError` that names the first of the `wrong` (num_rows,) bool, if any."""
        if wrong.any():
            line, texts = self.find(int(wrong.argmax()))
            text = texts[[wanted.name for wanted in self.wanted].index(column)]
            raise UserError(f"{self.file.path}, line {line}: {column!r} {why}: {quoted(text)}")

    def find(self, row: int) -> tuple[int, Sequence[str]]:
        """Reads the file again up to a row, and returns its line, from 1, and its texts."""
        rows = self.file.rows(self.wanted, set())
        good = ((line, row) for line, row in rows if not isinstance(row, BadRow))
        return next(itertools.islice(good, int(self.rows[row]), None))


def named_columns(**names: str) -> list[Column]:
    """The columns of texts that a reader's options name, by option."""
    return [Column(name, option=option) for option, name in names.items()]


def time_columns(name: str | None, kind: str = "time") -> list[Column]:
    """The column of times, numbers of seconds or dates as in ISO 8601, or none if `name` is None.

    "time", which is the default of all readers, may be missing from a file; any other may not.
    """
    return (
        [] if name is None else [Column(name, kind, required=name != "time", option="time_column")]
    )


def read_table(
    path: str | os.PathLike | TableFile, columns: Sequence[Column], *, bad_rows: str
) -> Table:
    """Reads columns of a .csv, .tsv or .jsonl file (.json means the same), gzipped or not.

    A .csv or .tsv file starts with a line of column names; each line of a .jsonl file is an object.
    Blank lines mean nothing. Text is UTF-8. A row is bad if it is malformed, has more values than
    there are columns, lacks a required column, or if one of its wanted values is not UTF-8, has a
    NUL character, is there twice, is an empty text, or is not of its kind. JSON's numbers are
    texts as they are written.

    Args:
        path: The file; its extension tells the format, and `.gz` after it the compression.
        columns: The columns to read, of different names.
        bad_rows: `refuse` for an error that names file and line, `count` to leave them out.

    Returns:
        The columns that are there, in the order of `columns`.

    Raises:
        UserError: If the file as a whole cannot be read, lacks a required column or has one twice,
            a row is bad and refused, or no row is good. A file that is no regular one, has a row of
            more than 16,777,216 characters, or, gzipped, more than 100 characters for each byte and
            4,194,304 in all, cannot be read.
    """
    check_choice("read_table", "bad_rows", bad_rows, ("refuse", "count"))
    refused = bad_rows == "refuse"
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise UserError(f"the columns to read must be different ones, got {listed(names)}")
    file = path if isinstance(path, TableFile) else TableFile.of(path)
    with memory_for(file.path):
        texts, report = _read_texts(file, columns, refused)
    table = Table(file, columns, {}, report, np.arange(len(texts[names[0]][0])))
    unusable = _not_text(table, texts, refused)
    values = {}
    for column in columns:
        if column.name in texts:
            values[column.name], wrong = _of_kind(column, _categorical(*texts[column.name]))
            if refused:
                table.refuse(column.name, wrong, _WRONG[column.kind])
            what = "empty" if column.kind == "text" else "unreadable"
            unusable[f"rows with an {what} {column.name!r}"] = wrong
    usable = count_unusable(unusable, report)
    if not usable.any():
        line, _ = table.find(0)
        reasons = ", ".join(counted(count, what) for what, count in report.items() if count)
        raise UserError(f"{file.path}: no row can be used, the first is line {line}: {reasons}")
    values = {name: column[usable] for name, column in values.items()}
    return dataclasses.replace(table, columns=values, rows=np.flatnonzero(usable))


def count_unusable(
    unusable: Mapping[str, np.ndarray], report: collections.Counter[str]
) -> np.ndarray:
    """Returns which rows nothing is wrong with, (n,) bool, and adds the others to the report.

    A row is counted by the first thing of `unusable` that is wrong with it.
    """
    usable = np.ones(len(next(iter(unusable.values()))), bool)
    for what, wrong in unusable.items():
        report[what] += int((wrong & usable).sum())
        usable &= ~wrong
    return usable


def _read_texts(
    file: TableFile, columns: Sequence[Column], refused: bool
) -> tuple[dict[str, tuple[np.ndarray, list[str]]], collections.Counter[str]]:
    """Returns the columns that there are, and how many lines were left out, by reason.

    A column is its distinct texts, and the number of each row's one among these, (n,) int32.
    """
    # A new text is numbered when it is looked up.
    numbers = [collections.defaultdict[str, int](itertools.count().__next__) for _ in columns]
    codes = [array.array("i") for _ in columns]
    present: set[str] = set()
    # The first one, and the first one that lacks a column: there may be too many to keep.
    bad: list[tuple[int, BadRow]] = []
    report: collections.Counter[str] = collections.Counter()

    def good_rows() -> Iterator[Sequence[str]]:
        for line, row in file.rows(columns, present):
            if not isinstance(row, BadRow):
                yield row
                continue
            report[f"lines left out: {row.reason}"] += row.num_lines
            if not bad or (row.names is not None and bad[-1][1].names is None):
                bad.append((line, row))
            if refused:
                return

    rows = good_rows()
    while block := list(itertools.islice(rows, _BLOCK)):  # By columns: a row at a time is slow.
        for code, number, column in zip(codes, numbers, zip(*block)):
            code.extend(map(number.__getitem__, column))
    if bad and (refused or not codes[0]):
        for line, row in bad:
            if row.names is not None:
                check_columns(f"{file.path}, line {line}", row.names, columns)
        line, row = bad[0]
        what = row.detail if refused else f"{row.detail}; nor is any other line good"
        raise UserError(f"{file.path}, line {line}: {what}")
    if not codes[0]:
        is_json = file.separator is None
        what = "the file is empty" if is_json else "there is nothing below the header"
        raise UserError(f"{file.path}: {what}")
    found = zip(columns, codes, numbers)
    return {c.name: (np.array(code), list(n)) for c, code, n in found if c.name in present}, report


def _not_text(
    table: Table, texts: Mapping[str, tuple[np.ndarray, list[str]]], refused: bool
) -> dict[str, np.ndarray]:
    """Returns rows, (n,) bool, with what pandas' categories take for other texts, by reason.

    Such texts become "", so that they are in no category.
    """
    unusable = {}
    for what, is_fine in (("not UTF-8", is_unicode), ("a NUL character", lambda t: not has_nul(t))):
        wrong = np.zeros(table.rows.size, bool)
        for codes, distinct in texts.values():
            fine = list(map(is_fine, distinct))
            if not all(fine):
                wrong |= ~np.array(fine)[codes]
                distinct[:] = (text if good else "" for text, good in zip(distinct, fine))
        if wrong.any():
            line, _ = table.find(int(wrong.argmax()))
            if refused:
                raise UserError(f"{table.file.path}, line {line}: {what}")
            what += f" (the first: line {line})"
        unusable[f"lines left out: {what}"] = wrong
    return unusable


def _categorical(codes: np.ndarray, texts: Sequence[str]) -> pd.Categorical:
    """Returns numbered texts as categories in alphabetical order."""
    distinct = sorted(set(texts))
    rank = {text: place for place, text in enumerate(distinct)}
    places = np.array([rank[text] for text in texts])
    return pd.Categorical.from_codes(places[codes], np.array(distinct, object))


def _of_kind(column: Column, texts: pd.Categorical) -> tuple[pd.Categorical | np.ndarray, ...]:
    """Returns a column's values, and where they are not what they should be: (n,) bool."""
    blank = np.array([not text.strip() for text in texts.categories], bool)
    if column.kind == "text":
        return texts, (blank & (not column.may_be_empty))[texts.codes]
    numbers = pd.to_numeric(texts.categories, errors="coerce").to_numpy(np.float64)
    if column.kind == "real":
        with np.errstate(over="ignore"):
            numbers = numbers.astype(np.float32)
        return numbers[texts.codes], ~np.isfinite(numbers)[texts.codes]
    numbers[~np.isfinite(numbers)] = np.nan
    if not np.isnan(numbers).any():  # Dates take time.
        return numbers[texts.codes], np.zeros(len(texts), bool)
    # What depends on the moment of reading, such as "now", is no date.
    written = texts.categories.where(texts.categories.str.contains("[0-9]"), "")
    dates = pd.to_datetime(written, format="ISO8601", errors="coerce", utc=True)
    dates = np.where(dates.isna(), np.nan, dates.asi8 / 1e9)
    times = max(
        (numbers[texts.codes], dates[texts.codes]), key=lambda values: np.isfinite(values).sum()
    )
    if column.kind == "order" and np.isnan(times).all():
        times = np.where(blank[texts.codes], np.nan, texts.codes)  # Categories are alphabetical.
    return times, np.isnan(times)

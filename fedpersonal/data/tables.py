"""Columns of tables, of the types that are wanted; bad rows are refused or counted."""

from __future__ import annotations

import array
import collections
import dataclasses
import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from fedpersonal.data.formats import Column, TableFile, is_finite
from fedpersonal.data.rows import BadRow, RowsWithin, memory_for, read_rows
from fedpersonal.data.sources import has_nul, is_unicode
from fedpersonal.errors import UserError, check_choice, counted, escaped, listed, quoted

_WRONG = {
    "text": "is empty",
    "real": "is not a finite number",
    "time": "is neither a number nor an ISO 8601 date",
    "order": "is neither a number nor an ISO 8601 date",
}
_BLOCK = 1 << 8  # Rows; of many more, more memory is touched than the caches hold.


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


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Some columns of a file's usable rows.

    Attributes:
        file: The file.
        columns: The columns that are there by name, (num_rows,) each: a `pandas.Categorical` of
            str for text, its categories in alphabetical order, else an array: float32 for `real`,
            float64 seconds for `time`, float64 for `order`.
        texts: The same columns as they are written, each a `pandas.Categorical`.
        report: What was left out: why, and how many times.
        lines: (num_rows,) int64: the line of the file in which each row begins, from 1.
    """

    file: TableFile
    columns: dict[str, pd.Categorical | np.ndarray]
    texts: dict[str, pd.Categorical]
    report: collections.Counter[str]
    lines: np.ndarray

    @property
    def name(self) -> str:
        """The file's name without its folder and extensions."""
        return escaped(os.path.basename(self.file.path).split(".")[0])

    def order(self, column: str | None) -> np.ndarray:
        """A column of times, or zeros where there is none: (num_rows,) float64."""
        return self.columns[column] if column in self.columns else np.zeros(self.lines.size)

    def refuse(self, column: str, wrong: np.ndarray, why: str) -> None:
        """Raises a `UserError` that names the first of the `wrong` (num_rows,) bool, if any."""
        if wrong.any():
            first = int(wrong.argmax())
            text = quoted(self.texts[column][first])
            raise UserError(f"{self.file.path}, line {self.lines[first]}: {column!r} {why}: {text}")


def read_table(path: str | os.PathLike, columns: Sequence[Column], *, bad_rows: str) -> Table:
    """Reads columns of a .csv, .tsv or .jsonl file (.json means the same), gzipped or not.

    A .csv or .tsv file starts with a line of column names; each line of a .jsonl file is an object.
    Blank lines mean nothing. Text is UTF-8. Quotes may enclose values of a .csv file alone. A row
    is bad if it is malformed, has more values than there are columns, lacks a required column, or
    if one of its wanted values is not UTF-8, has a NUL character, is there twice, is an empty text,
    or is not of its kind. JSON's numbers are texts as they are written.

    Args:
        path: The file; its extension tells the format, and `.gz` after it the compression. A
            `TableFile` says otherwise.
        columns: The columns to read, of different names.
        bad_rows: `refuse` for an error that names file and line, `count` to leave them out.

    Returns:
        The columns that are there, in the order of `columns`.

    Raises:
        UserError: If the file as a whole cannot be read, lacks a required column or has one twice,
            a row is bad and refused, no row is good, or a quoted value seems to hold other rows. A
            file that is no regular one, has a row of
            more than 16,777,216 characters, or, gzipped, more than 100 characters for each byte and
            4,194,304 in all, cannot be read.
    """
    check_choice("read_table", "bad_rows", bad_rows, ("refuse", "count"))
    refused = bad_rows == "refuse"
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise UserError(f"the columns to read must be different ones, got {listed(names)}")
    file = TableFile.of(path)
    with memory_for(file.path):
        table, unusable = _read_texts(file, columns, refused)
    for column in columns:
        if column.name in table.texts:
            values, wrong = _of_kind(column, table.texts[column.name])
            table.columns[column.name] = values
            if refused:
                table.refuse(column.name, wrong, _WRONG[column.kind])
            what = "empty" if column.kind == "text" else "unreadable"
            unusable[f"rows with an {what} {column.name!r}"] = wrong
    usable = count_unusable(unusable, table.report)
    if not usable.any():
        reasons = ", ".join(counted(count, what) for what, count in table.report.items() if count)
        raise UserError(
            f"{file.path}: no row can be used, the first is line {table.lines[0]}: {reasons}"
        )
    return dataclasses.replace(
        table,
        columns={name: column[usable] for name, column in table.columns.items()},
        texts={name: column[usable] for name, column in table.texts.items()},
        lines=table.lines[usable],
    )


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
) -> tuple[Table, dict[str, np.ndarray]]:
    """Returns the texts of all rows that are well formed, and which of them no one can use, why.

    These texts become "", as pandas' categories would take some of them for others.
    """
    # A new text is numbered when it is looked up.
    numbers = [collections.defaultdict[str, int](itertools.count().__next__) for _ in columns]
    codes = [array.array("i") for _ in columns]
    report: collections.Counter[str] = collections.Counter()
    present: set[str] = set()
    suspects: list[RowsWithin] = []
    first_bad = ""
    lines = array.array("q")

    def good_rows() -> Iterator[Sequence[str]]:
        nonlocal first_bad
        for line, row in read_rows(file, columns, present, suspects):
            if not isinstance(row, BadRow):
                lines.append(line)
                yield row
                continue
            report[f"lines left out: {row.reason}"] += row.num_lines
            first_bad = first_bad or f"{file.path}, line {line}: {row.detail}"
            if refused:
                raise UserError(first_bad)

    rows = good_rows()
    while block := list(itertools.islice(rows, _BLOCK)):  # By columns: a row at a time is slow.
        for code, number, column in zip(codes, numbers, zip(*block)):
            code.extend(map(number.__getitem__, column))
    if not lines:
        what = "there is nothing below the header" if file.separator else "the file is empty"
        raise UserError(
            f"{first_bad}; nor is any other line good" if first_bad else f"{file.path}: {what}"
        )
    _refuse_rows_within(file, columns, suspects, numbers)
    table = Table(file, {}, {}, report, np.array(lines))
    unusable = {}
    texts = {c.name: list(n) for c, n in zip(columns, numbers) if c.name in present}
    places = {c.name: np.array(code) for c, code in zip(columns, codes)}
    checks = {file.undecodable: is_unicode, "a NUL character": lambda text: not has_nul(text)}
    way_out = file.other_encoding if any(map(_has_bytes, itertools.chain(*texts.values()))) else ""
    for what, is_fine in checks.items():
        wrong = np.zeros(table.lines.size, bool)
        for name, distinct in texts.items():
            fine = np.array(list(map(is_fine, distinct)))
            wrong |= ~fine[places[name]]
            distinct[:] = (text if good else "" for text, good in zip(distinct, fine))
        if wrong.any():
            line = table.lines[wrong.argmax()]
            advice = way_out if is_fine is is_unicode else ""
            if refused:
                raise UserError(f"{file.path}, line {line}: {what}{advice}")
            what += f" (the first: line {line}{advice})"
        unusable[f"lines left out: {what}"] = wrong
    for name, distinct in texts.items():
        ordered = sorted(set(distinct))
        rank = {text: place for place, text in enumerate(ordered)}
        ranks = np.array([rank[text] for text in distinct])[places[name]]
        table.texts[name] = pd.Categorical.from_codes(ranks, np.array(ordered, object))
    return table, unusable


def _has_bytes(text: str) -> bool:
    """Whether a text has bytes of another encoding, and not only escaped halves of characters."""
    return not text.isascii() and any("\udc80" <= c <= "\udcff" for c in text)


def _refuse_rows_within(
    file: TableFile,
    columns: Sequence[Column],
    suspects: Sequence[RowsWithin],
    known: Sequence[Collection[str]],
) -> None:
    """Raises a `UserError` if the lines of a quoted value have values of other rows' columns."""

    def is_likely(column: int, text: str) -> bool:
        return text in known[column] or (columns[column].kind == "real" and is_finite(text))

    for row in suspects:
        if row.values and all(any(itertools.starmap(is_likely, found)) for found in row.values):
            flags = ": if quotes are text, give --quoting=none, else --quoting=double"
            raise UserError(
                f"{file.path}, line {row.line}: a value that begins with a quotation mark seems to "
                f"hold the rows below{flags if file.has_flags else ''}"
            )


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
    numbers = np.where(np.isfinite(numbers), numbers, np.nan)
    if not np.isnan(numbers).any():  # Dates take time.
        return numbers[texts.codes], np.zeros(len(texts), bool)
    # What depends on the moment of reading, such as "now", is no date.
    written = texts.categories.where(texts.categories.str.contains("[0-9]"), "")
    dates = pd.to_datetime(written, format="ISO8601", errors="coerce", utc=True)
    units_of_second = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}  # pandas 3 has microseconds.
    dates = np.where(dates.isna(), np.nan, dates.asi8 / units_of_second[dates.unit])
    times = max(
        (numbers[texts.codes], dates[texts.codes]), key=lambda values: np.isfinite(values).sum()
    )
    if column.kind == "order" and np.isnan(times).all():
        times = np.where(blank[texts.codes], np.nan, texts.codes)  # Categories are alphabetical.
    return times, np.isnan(times)

"""Typed columns of tables; bad rows are refused or counted."""

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
from fedpersonal.data.rows import BadRow, EmbeddedRows, memory_for, read_rows
from fedpersonal.data.sources import has_nul, is_unicode
from fedpersonal.errors import UserError, check_choice, join_words, printable, quoted, with_count

_KIND_ERRORS = {
    "text": "is empty",
    "real": "is not a finite number",
    "time": "is neither a number nor an ISO 8601 date",
    "order": "is neither a number nor an ISO 8601 date",
}
_BLOCK = 1 << 8  # Rows that are processed at once; larger blocks exceed the processor's caches.


def named_columns(**names: str) -> list[Column]:
    """Returns text columns from a reader's options: option to column name."""
    return [Column(name, option=option) for option, name in names.items()]


def time_columns(name: str | None, kind: str = "time") -> list[Column]:
    """Returns the column of times, seconds or ISO 8601 dates; no column if `name` is None.

    "time", the default of all readers, may be missing from a file; other columns may not.
    """
    return (
        [] if name is None else [Column(name, kind, required=name != "time", option="time_column")]
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Columns of a file's usable rows.

    Attributes:
        file: The file.
        columns: The existing columns by name, (num_rows,) each: a `pandas.Categorical` of
            str for text, its categories in alphabetical order, else an array: float32 for `real`,
            float64 seconds for `time`, float64 for `order`.
        texts: The same columns as texts of the file, each a `pandas.Categorical`.
        report: Reason to the number of rows or lines that were left out.
        lines: (num_rows,) int64: the first line of each row in the file, from 1.
    """

    file: TableFile
    columns: dict[str, pd.Categorical | np.ndarray]
    texts: dict[str, pd.Categorical]
    report: collections.Counter[str]
    lines: np.ndarray

    @property
    def name(self) -> str:
        """The file's name without its folder and extensions."""
        return printable(os.path.basename(self.file.path).split(".")[0])

    def order(self, column: str | None) -> np.ndarray:
        """Returns a column of times, or zeros if it does not exist: (num_rows,) float64."""
        return self.columns[column] if column in self.columns else np.zeros(self.lines.size)

    def refuse(self, column: str, wrong: np.ndarray, reason: str) -> None:
        """Raises a `UserError` about the first row of a mask `wrong`, (num_rows,) bool, if any."""
        if wrong.any():
            first = int(wrong.argmax())
            text = quoted(self.texts[column][first])
            raise UserError(
                f"{self.file.path}, line {self.lines[first]}: {column!r} {reason}: {text}"
            )


def read_table(path: str | os.PathLike, columns: Sequence[Column], *, bad_rows: str) -> Table:
    """Reads columns of a .csv, .tsv or .jsonl file (or .json, a synonym), gzipped or not.

    A .csv or .tsv file starts with a line of column names; each line of a .jsonl file is an object.
    Blank lines are ignored. Text is UTF-8. Quotes may enclose values of a .csv file only. A row is
    bad if it is malformed, has more values than columns, or lacks a required column. It is also bad
    if one of the values to read is not UTF-8, has a NUL character, occurs twice, is an empty text,
    or is not of its kind. JSON's numbers stay the texts of the file.

    Args:
        path: The file; its extension determines the format, and `.gz` after it the compression. A
            `TableFile` overrides both.
        columns: The columns to read, of different names.
        bad_rows: `refuse` for an error that names file and line, `count` to leave bad rows out.

    Returns:
        The existing columns, in the order of `columns`.

    Raises:
        UserError: If the file cannot be read, lacks a required column or has one twice, a row is
            bad and refused, no row is good, or a quoted value seems to hold other rows. The file
            must be a regular one, with at most 16,777,216 characters a row. A gzip file may have
            4,194,304 characters in all, or 100 for each byte if that is more.
    """
    check_choice("read_table", "bad_rows", bad_rows, ("refuse", "count"))
    refused = bad_rows == "refuse"
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise UserError(f"the columns to read must be different ones, got {join_words(names)}")
    file = TableFile.from_path(path)
    with memory_for(file.path):
        table, unusable = _read_texts(file, columns, refused)
    for column in columns:
        if column.name in table.texts:
            values, wrong = _convert(column, table.texts[column.name])
            table.columns[column.name] = values
            if refused:
                table.refuse(column.name, wrong, _KIND_ERRORS[column.kind])
            what = "empty" if column.kind == "text" else "unreadable"
            unusable[f"rows with an {what} {column.name!r}"] = wrong
    usable = count_unusable(unusable, table.report)
    if not usable.any():
        reasons = ", ".join(
            with_count(count, what) for what, count in table.report.items() if count
        )
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
    """Returns a mask of the usable rows, (n,) bool, and counts the others in the report.

    `unusable` maps a reason to a mask, (n,) bool. A row is counted by its first reason.
    """
    usable = np.ones(len(next(iter(unusable.values()))), bool)
    for reason, wrong in unusable.items():
        report[reason] += int((wrong & usable).sum())
        usable &= ~wrong
    return usable


def _read_texts(
    file: TableFile, columns: Sequence[Column], refused: bool
) -> tuple[Table, dict[str, np.ndarray]]:
    """Returns the texts of all well-formed rows, and masks of unusable rows by reason.

    Unusable texts become "", because pandas' categories would confuse them with others.
    """
    # The lookup of a new text numbers it.
    numbers = [collections.defaultdict[str, int](itertools.count().__next__) for _ in columns]
    codes = [array.array("i") for _ in columns]
    report: collections.Counter[str] = collections.Counter()
    present: set[str] = set()
    suspects: list[EmbeddedRows] = []
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
    while block := list(
        itertools.islice(rows, _BLOCK)
    ):  # By columns, because a row at a time is slow.
        for code, number, column in zip(codes, numbers, zip(*block)):
            code.extend(map(number.__getitem__, column))
    if not lines:
        what = "there is nothing below the header" if file.separator else "the file is empty"
        raise UserError(
            f"{first_bad}; nor is any other line good" if first_bad else f"{file.path}: {what}"
        )
    _refuse_embedded_rows(file, columns, suspects, numbers)
    table = Table(file, {}, {}, report, np.array(lines))
    unusable = {}
    texts = {c.name: list(n) for c, n in zip(columns, numbers) if c.name in present}
    places = {c.name: np.array(code) for c, code in zip(columns, codes)}
    checks = {file.undecodable: is_unicode, "a NUL character": lambda text: not has_nul(text)}
    encoding_advice = (
        file.other_encoding if any(map(_has_bytes, itertools.chain(*texts.values()))) else ""
    )
    for what, is_fine in checks.items():
        wrong = np.zeros(table.lines.size, bool)
        for name, distinct in texts.items():
            fine = np.array(list(map(is_fine, distinct)))
            wrong |= ~fine[places[name]]
            distinct[:] = (text if good else "" for text, good in zip(distinct, fine))
        if wrong.any():
            line = table.lines[wrong.argmax()]
            advice = encoding_advice if is_fine is is_unicode else ""
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
    """Returns whether a text has bytes of another encoding, not only escaped surrogates."""
    return not text.isascii() and any("\udc80" <= c <= "\udcff" for c in text)


def _refuse_embedded_rows(
    file: TableFile,
    columns: Sequence[Column],
    suspects: Sequence[EmbeddedRows],
    distinct_texts: Sequence[Collection[str]],
) -> None:
    """Raises a `UserError` if the lines of a quoted value have values that other rows have."""

    def is_likely(column: int, text: str) -> bool:
        return text in distinct_texts[column] or (
            columns[column].kind == "real" and is_finite(text)
        )

    for row in suspects:
        if row.values and all(any(itertools.starmap(is_likely, pairs)) for pairs in row.values):
            flags = ": if quotes are text, give --quoting=none, else --quoting=double"
            raise UserError(
                f"{file.path}, line {row.line}: a value that begins with a quotation mark seems to "
                f"hold the rows below{flags if file.has_flags else ''}"
            )


def _convert(column: Column, texts: pd.Categorical) -> tuple[pd.Categorical | np.ndarray, ...]:
    """Returns a column's values, and a mask of the wrong ones, (n,) bool."""
    blank = np.array([not text.strip() for text in texts.categories], bool)
    if column.kind == "text":
        return texts, (blank & (not column.may_be_empty))[texts.codes]
    numbers = pd.to_numeric(texts.categories, errors="coerce").to_numpy(np.float64)
    if column.kind == "real":
        with np.errstate(over="ignore"):
            numbers = numbers.astype(np.float32)
        return numbers[texts.codes], ~np.isfinite(numbers)[texts.codes]
    numbers = np.where(np.isfinite(numbers), numbers, np.nan)
    if not np.isnan(numbers).any():  # Parsing dates is slow.
        return numbers[texts.codes], np.zeros(len(texts), bool)
    # A text that depends on the time of reading, such as "now", is no date.
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

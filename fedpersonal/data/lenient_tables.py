"""Text columns out of .csv, .tsv and .jsonl files, bad lines counted instead of refused."""

from __future__ import annotations

import collections
import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import pandas as pd

from fedpersonal.data.table_files import TextTable, choose_columns, open_text, separator_of
from fedpersonal.errors import UserError


def read_lenient_table(
    path: str | os.PathLike, required: Sequence[str], *, optional: Sequence[str] = ()
) -> TextTable:
    """Reads columns of the files that `table_files.read_table` reads, without the bad lines.

    A line is bad if one of its wanted values is not UTF-8 or neither text nor a number, if it
    is no JSON object, lacks a required column, or does not come apart into as many values as
    there are columns.

    Args:
        path: The file; its extension tells the format, and `.gz` after it the compression.
        required: Names of columns that must be there.
        optional: Names of columns that are read if a line has them; empty in lines without.

    Returns:
        The columns of the good lines; its `skipped` says how many lines were bad, and why.

    Raises:
        UserError: If the file as a whole cannot be read, all its lines are bad, or a required
            column is in none of them.
    """
    path = os.fspath(path)
    separator = separator_of(path)
    names = [*required, *optional]
    columns: dict[str, list[str]] = {name: [] for name in names}
    lines: list[int] = []
    bad: list[_BadLine] = []
    present = set(required)
    with open_text(path, "utf-8-sig", errors="surrogateescape") as file:
        if separator is None:
            rows = _json_rows(file)
        else:
            rows = _delimited_rows(file, separator, path, required)
        for line, row in rows:
            try:
                values = _texts(row, required, optional)
            except _BadLine as problem:
                problem.line = line
                bad.append(problem)
                continue
            lines.append(line)
            present.update(row)
            for column, value in zip(columns.values(), values):
                column.append(value)
    if not lines:
        _refuse(path, bad, required, separator is not None)
    skipped = collections.Counter()
    for problem in bad:
        skipped[problem.reason] += problem.num_lines
    kept = {name: pd.Categorical(columns[name]) for name in names if name in present}
    return TextTable(path, kept, lines.__getitem__, dict(skipped))


class _BadLine(Exception):
    """Why a line cannot be used.

    Attributes:
        reason: A few words.
        num_lines: How many lines of the file it took along.
        names: The columns of a line that lacks one, or None.
        line: Its number in the file, from 1.
    """

    def __init__(self, reason: str, *, num_lines: int = 1, names: Sequence[str] | None = None):
        super().__init__(reason)
        self.reason, self.num_lines, self.names = reason, num_lines, names
        self.line = 0


def _json_rows(file: TextIO) -> Iterator[tuple[int, Mapping[str, Any] | _BadLine]]:
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):  # The first also of a number of too many digits.
            record = None
        yield line, record if isinstance(record, dict) else _BadLine("not a JSON object")


def _delimited_rows(
    file: TextIO, separator: str, path: str, required: Sequence[str]
) -> Iterator[tuple[int, Mapping[str, str] | _BadLine]]:
    # Strict, or the text after a forgotten quote would pass for one long value.
    reader = csv.reader(file, delimiter=separator, strict=True)
    names = None
    while True:
        before = reader.line_num
        try:
            record = next(reader, None)
        except csv.Error as error:
            if names is None:
                raise UserError(f"{path}, line {before + 1}: malformed header: {error}") from None
            yield before + 1, _BadLine("malformed", num_lines=reader.line_num - before)
            continue
        if record is None and names is None:
            raise UserError(f"{path}: the file is empty")
        if record is None:
            return
        if not record or (len(record) == 1 and not record[0].strip()):
            continue
        if names is None:
            names = record
            choose_columns(path, names, required, ())
        elif len(record) > len(names):
            yield before + 1, _BadLine("more values than columns")
        else:
            missing = [""] * (len(names) - len(record))
            yield before + 1, dict(zip(names, record + missing))


def _texts(
    row: Mapping[str, Any] | _BadLine, required: Sequence[str], optional: Sequence[str]
) -> list[str]:
    """Returns the wanted values, the required ones first; raises `_BadLine`."""
    if isinstance(row, _BadLine):
        raise row
    values = []
    for name in required:
        if name not in row:
            raise _BadLine(f"no {name!r}", names=list(row))
        values.append(row[name])
    values += [row.get(name) for name in optional]
    for i, value in enumerate(values):
        if isinstance(value, (list, dict)):
            raise _BadLine(f"{[*required, *optional][i]!r} is not text")
        # JSON's true and false are labels of 1 and 0.
        value = int(value) if isinstance(value, bool) else value
        values[i] = "" if value is None else str(value)
        try:
            values[i].encode()
        except UnicodeEncodeError:  # A byte that did not decode was read as a lone surrogate.
            raise _BadLine("not UTF-8") from None
    return values


def _refuse(path: str, bad: Sequence[_BadLine], required: Sequence[str], has_header: bool):
    """Raises the `UserError` of a file without a good line."""
    if not bad:
        what = "there is nothing below the header" if has_header else "the file is empty"
        raise UserError(f"{path}: {what}")
    for problem in bad:
        if problem.names is not None:
            choose_columns(f"{path}, line {problem.line}", problem.names, required, ())
    raise UserError(f"{path}, line {bad[0].line}: {bad[0].reason}; nor is any other line good")

"""Text columns out of .csv, .tsv and .jsonl files, with a way back to the lines of the file."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gzip
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import pandas as pd

from fedpersonal.errors import UserError

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = (".jsonl", ".json")


@dataclasses.dataclass(frozen=True)
class TextTable:
    """Some columns of a file, as text.

    Attributes:
        path: The file.
        columns: The columns by name, each (num_records,) categories of str.
        line_of: Maps a record's index, from 0, to its line in the file, from 1.
        skipped: How many records were left out, by what is wrong with them.
    """

    path: str
    columns: Mapping[str, pd.Categorical]
    line_of: Callable[[int], int]
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)


def read_table(
    path: str | os.PathLike, required: Sequence[str], *, optional: Sequence[str] = ()
) -> TextTable:
    """Reads columns of a .csv, .tsv or .jsonl file (.json means the same), gzipped or not.

    A .csv or .tsv file starts with a line of column names; each line of a .jsonl file is an
    object. Blank lines mean nothing. Text is UTF-8.

    Args:
        path: The file; its extension tells the format, and `.gz` after it the compression.
        required: Names of columns that must be there.
        optional: Names of columns that are read if they are there.

    Returns:
        The columns, `required` first.

    Raises:
        UserError: If the file cannot be read as what its extension says, has no records, or
            lacks a required column.
    """
    path = os.fspath(path)
    separator = separator_of(path)
    if separator is None:
        return _read_json_lines(path, required, optional)
    return read_delimited(path, required, optional=optional, separator=separator)


def separator_of(path: str) -> str | None:
    """Returns what separates the values of a file of this name; None for JSON lines.

    Raises:
        UserError: If the name has none of the known extensions.
    """
    stem = path[: -len(".gz")] if path.lower().endswith(".gz") else path
    extension = os.path.splitext(stem)[1].lower()
    if extension in _SEPARATORS:
        return _SEPARATORS[extension]
    if extension in _JSON_LINES:
        return None
    raise UserError(
        f"{path}: the name of a table must end in .csv, .tsv, .jsonl or .json,"
        " with or without .gz after it"
    )


def read_delimited(
    path: str | os.PathLike,
    required: Sequence[str],
    *,
    optional: Sequence[str] = (),
    separator: str,
    names: Sequence[str] | None = None,
    encoding: str = "utf-8-sig",
) -> TextTable:
    """Reads columns of a file of separated values, whatever its extension.

    Args:
        path: The file; gzipped if its name ends in `.gz`.
        required: Names of columns that must be there.
        optional: Names of columns that are read if they are there.
        separator: The character between two values.
        names: The names of all columns of a file without a header, or None if it has one.
        encoding: The text's encoding; the default is UTF-8, with a byte-order mark or not.

    Returns:
        The columns, `required` first.

    Raises:
        UserError: As `read_table`.
    """
    path = os.fspath(path)

    def records() -> Iterator[tuple[int, list[str]]]:
        # Only to find the line of a mistake: quoted line breaks and blank lines shift it.
        with open_text(path, encoding) as file:
            reader = csv.reader(file, delimiter=separator)
            line = 1
            for record in reader:
                if record and not (len(record) == 1 and record[0].isspace()):
                    yield line, record
                line = reader.line_num + 1

    def line_of(index: int) -> int:
        wanted = index + (names is None)
        return next(line for i, (line, _) in enumerate(records()) if i == wanted)

    with open_text(path, encoding) as file, warnings.catch_warnings():
        # Pandas only warns of a first record longer than the header, and loses its end.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(
                file,
                sep=separator,
                names=names,
                dtype="category",  # Ids repeat: categories are fast and small.
                na_filter=False,  # An id may be called "NA".
                index_col=False,
            )
        except pd.errors.EmptyDataError:
            raise UserError(f"{path}: the file is empty") from None
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            raise UserError(_parser_message(path, records(), names, error)) from None
    wanted = choose_columns(path, frame.columns, required, optional)
    if frame.empty:
        raise UserError(f"{path}: there is nothing below the header")
    return TextTable(path, {name: frame[name].array for name in wanted}, line_of)


def _parser_message(
    path: str,
    records: Iterator[tuple[int, list[str]]],
    names: Sequence[str] | None,
    error: Exception,
) -> str:
    with contextlib.suppress(UserError):  # Pandas then says more.
        width = len(names if names is not None else next(records)[1])
        for line, record in records:
            if len(record) > width:
                return f"{path}, line {line}: {len(record)} values for {width} columns"
    return f"{path}: {' '.join(str(error).split())}"


def _read_json_lines(path: str, required: Sequence[str], optional: Sequence[str]) -> TextTable:
    lines: list[int] = []
    columns: dict[str, list[str]] = {}
    with open_text(path, "utf-8-sig") as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except json.JSONDecodeError:
                record = None
            if not isinstance(record, dict):
                raise UserError(f"{path}, line {line}: not a JSON object")
            if not columns:
                columns = {name: [] for name in choose_columns(path, record, required, optional)}
            lines.append(line)
            for name, values in columns.items():
                if name not in record:
                    raise UserError(f"{path}, line {line}: there is no {name!r}")
                values.append(_as_text(record[name], f"{path}, line {line}: {name!r}"))
    if not lines:
        raise UserError(f"{path}: the file is empty")
    return TextTable(path, {k: pd.Categorical(v) for k, v in columns.items()}, lines.__getitem__)


def _as_text(value: Any, what: str) -> str:
    if isinstance(value, (bool, list, dict)):
        raise UserError(f"{what} must be text or a number, got {json.dumps(value)[:60]}")
    return "" if value is None else str(value)


def choose_columns(
    path: str, names: Sequence[str], required: Sequence[str], optional: Sequence[str]
) -> list[str]:
    """Returns the `required` names and those `optional` ones that are among the file's `names`.

    Raises:
        UserError: If a required one is not.
    """
    for name in required:
        if name not in names:
            raise UserError(
                f"{path}: there is no column {name!r}; the columns are {', '.join(names)}"
            )
    return [*required, *(name for name in optional if name in names)]


@contextlib.contextmanager
def open_text(path: str, encoding: str, errors: str = "strict") -> Iterator[TextIO]:
    """Opens a text file, gzipped or not, and turns its failures into `UserError`s."""
    opener = gzip.open if path.lower().endswith(".gz") else open
    try:
        with opener(path, "rt", encoding=encoding, errors=errors, newline="") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a valid gzip file: {error}") from None
    except csv.Error as error:
        raise UserError(f"{path}: not a valid table: {error}") from None
    except UnicodeDecodeError as error:
        name = encoding.replace("-sig", "").upper()
        raise UserError(f"{path}: not {name} text: {error.reason}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None

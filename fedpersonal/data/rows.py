"""Reading of foreign tables row by row, within limits that no honest table exceeds."""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import functools
import gzip
import io
import json
import math
import operator
import os
import stat
import typing
import zlib
from collections.abc import Iterator, Sequence

from fedpersonal.data.formats import UTF_8, Column, TableFile, encoding_of, missing_columns
from fedpersonal.data.sources import is_unicode
from fedpersonal.errors import UserError, printable

MAX_ROW_LENGTH = 1 << 24  # Characters.
# The maximum number of characters for each byte of a gzip file beyond the minimum.
_MIN_EXPANDED, _MAX_EXPANSION = 1 << 22, 100
_MAX_ROW_LINES = 100  # Kept lines of a row, to detect that they are rows themselves.


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[io.BufferedReader]:
    """Opens a regular file for reading; errors until it is closed become a `UserError`."""
    try:
        mode = os.stat(path).st_mode
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise UserError(f"{path}: cannot be read: it is not a regular file")
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a valid gzip file: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


@contextlib.contextmanager
def memory_for(path: str) -> Iterator[None]:
    """Turns a lack of memory for a file's content into a `UserError`."""
    try:
        yield
    except MemoryError:
        raise UserError(f"{path}: cannot be read: there is not enough memory") from None


@dataclasses.dataclass
class Lines:
    """The lines of a text file; bytes that its encoding lacks are lone surrogates.

    Attributes:
        path: The path; gzipped if it ends in `.gz`.
        encoding: The text encoding; a byte-order mark takes precedence over UTF-8.
        row_length: The number of characters of the current row that have been read; `start_row`
            resets it.
        row_lines: The first lines of the current row.
    """

    path: str
    encoding: str = UTF_8
    row_length: int = 0
    row_lines: list[str] = dataclasses.field(default_factory=list)

    def __iter__(self) -> Iterator[str]:
        """Yields the lines with their line ends, of any kind.

        Raises:
            UserError: If the file cannot be read, is not of its encoding, a row has more than
                `MAX_ROW_LENGTH` characters, or the text is implausibly longer than the compressed
                file.
        """
        number = 0
        with open_bytes(self.path) as file, self._open(file) as text:
            length, allowed = 0, _MIN_EXPANDED if self._is_gzip else math.inf
            read = functools.partial(text.readline, MAX_ROW_LENGTH + 1)
            try:
                for number, line in enumerate(iter(read, ""), start=1):
                    self.row_length += len(line)
                    if self.row_length > MAX_ROW_LENGTH:
                        raise UserError(
                            f"{self.path}, line {number}: a row of more than {MAX_ROW_LENGTH:,}"
                            " characters"
                        )
                    length += len(line)
                    if length > allowed:
                        allowed = max(allowed, _MAX_EXPANSION * file.tell())
                        if length > allowed:
                            raise UserError(
                                f"{self.path}: its text is more than {_MAX_EXPANSION} times as long"
                                " as the gzip file; if that is right, unpack it first"
                            )
                    if len(self.row_lines) < _MAX_ROW_LINES:
                        self.row_lines.append(line)
                    yield line
            except UnicodeError as error:  # UTF-16 and UTF-32 cannot escape all bytes.
                reason = printable(str(error))
                raise UserError(
                    f"{self.path}, after line {number}: not {self.encoding}: {reason}"
                ) from None

    def start_row(self) -> None:
        """Forgets the lines of the previous row."""
        self.row_length = 0
        self.row_lines.clear()

    @property
    def _is_gzip(self) -> bool:
        return self.path.lower().endswith(".gz")

    def _open(self, file: io.BufferedReader) -> io.TextIOWrapper:
        binary = typing.cast(
            io.BufferedReader, gzip.GzipFile(fileobj=file) if self._is_gzip else file
        )
        encoding = encoding_of(binary.peek(4), self.encoding)
        return io.TextIOWrapper(binary, encoding, "surrogateescape", newline="")


@dataclasses.dataclass(frozen=True)
class BadRow:
    """A row that cannot be used.

    Attributes:
        reason: The reason, in words that are equal for all such rows.
        detail: The reason, in detail.
        num_lines: The number of lines of the file that the row covers.
    """

    reason: str
    detail: str
    num_lines: int = 1


Row = typing.Union[Sequence[str], BadRow]


@dataclasses.dataclass(frozen=True)
class EmbeddedRows:
    """A row with a quoted value whose lines have the form of rows.

    Attributes:
        line: The row's first line in the file, from 1.
        values: For each such line the values that it would have as a row: pairs of the index of
            the column and the text.
    """

    line: int
    values: list[list[tuple[int, str]]]


def read_rows(
    file: TableFile,
    columns: Sequence[Column],
    present: set[str],
    suspects: list[EmbeddedRows] | None = None,
) -> Iterator[tuple[int, Row]]:
    """Yields the first line, from 1, and the content of each row; blank lines are no rows.

    The content is a text for each column ("" if there is none), or a `BadRow`. Bytes that the
    encoding cannot decode are lone surrogates. While rows are read, `present` receives the names
    of existing columns, and `suspects` the rows that may hold other rows.
    """
    lines = Lines(file.path, file.encoding)
    if file.separator is None:
        yield from _json_rows(lines, file, columns, present)
        return
    records = _quoted_records(lines, file) if file.has_quotes else _plain_records(lines, file)
    names = _header(file, records) if file.names is None else list(file.names)
    if missing := missing_columns(file, names, columns):
        raise UserError(f"{file.path}: {missing[1]}")
    for column in columns:
        if names.count(column.name) > 1:
            raise UserError(f"{file.path}: two columns are called {column.name!r}")
    present.update(names)
    # Each row gets one more value at its end, "", the value of missing columns.
    places = [names.index(c.name) if c.name in names else len(names) for c in columns]
    # The last index makes the result a tuple, even for a single column.
    take = operator.itemgetter(*places, len(names))
    padding = [""] * (len(names) + 1)
    is_first = file.names is not None
    for line, record in records:
        if isinstance(record, BadRow):
            yield line, record
            continue
        if is_first and {c.name for c in columns if c.required} <= {*record}:
            raise UserError(f"{file.path}, line {line}: it names the columns: leave --header out")
        is_first = False
        if len(record) > len(names):
            detail = f"{len(record)} values for {len(names)} columns"
            if file.names is not None:
                detail += " of --header; name the others -"
            yield line, BadRow("more values than columns", detail)
            continue
        if file.quoting == "auto":
            if len(lines.row_lines) > 1 and suspects is not None:
                suspects += _embedded_rows(file, line, record, lines.row_lines, places)
            elif len(record) < len(names) and not file.has_quotes and any(map(_opens, record)):
                raise UserError(
                    f"{file.path}, line {line}: a value begins with a quotation mark, and the line"
                    " lacks others: if values stand in quotes, give --quoting=double, else"
                    " --quoting=none"
                )
        yield line, take([*record, *padding[len(record) :]])


def _header(file: TableFile, records: Iterator[tuple[int, Row]]) -> Sequence[str]:
    line, names = next(records, (0, None))
    if names is None:
        raise UserError(f"{file.path}: the file is empty")
    if isinstance(names, BadRow):
        raise UserError(f"{file.path}, line {line}: the header is {names.detail}")
    if not all(map(is_unicode, names)):
        raise UserError(f"{file.path}, line {line}: {file.undecodable}{file.other_encoding}")
    return names


def _opens(value: str) -> bool:
    return value.startswith('"') and (len(value) == 1 or not value.endswith('"'))


def _embedded_rows(
    file: TableFile, line: int, record: Sequence[str], lines: list[str], places: Sequence[int]
) -> Iterator[EmbeddedRows]:
    """Yields the rows that the lines of a row would be, if all lines have the form of rows."""
    rows = [file.divide(text) for text in lines if text.strip()]
    broken = [i for i, value in enumerate(record) if "\n" in value or "\r" in value]
    if not broken or any(len(row) != len(record) for row in rows):
        return
    # Values before the quoted value, in its first line, and after it, in its last, are the row's.
    inner_columns = [range(len(record)) for _ in rows]
    inner_columns[0] = range(broken[0] + 1, len(record))
    if len(lines) < _MAX_ROW_LINES:
        inner_columns[-1] = range(broken[-1])
    values = [
        [(i, row[p]) for i, p in enumerate(places) if p in columns and row[p].strip()]
        for row, columns in zip(rows, inner_columns)
    ]
    yield EmbeddedRows(line, [pairs for pairs in values if pairs])


def _plain_records(lines: Lines, file: TableFile) -> Iterator[tuple[int, Row]]:
    """Yields the values of each line that is not blank, including the header."""
    for line, text in enumerate(lines, start=1):
        lines.start_row()
        record = file.divide(text)
        if len(record) > 1 or (record and record[0].strip()):
            yield line, record


def _quoted_records(lines: Lines, file: TableFile) -> Iterator[tuple[int, Row]]:
    """Yields the values of each row that is not blank, including the header."""
    # Strict, because otherwise the text after a missing quote would become one long value.
    reader = csv.reader(lines, delimiter=typing.cast(str, file.separator), strict=True)
    while True:
        line = reader.line_num + 1
        lines.start_row()
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if str(error).startswith("field larger than"):
                detail = reason = f"a text of more than {csv.field_size_limit():,} characters"
            else:
                reason, detail = "malformed", f"malformed: {printable(str(error))}"
                if file.has_flags:
                    reason += " (if quotes are text, give --quoting=none)"
                    detail += "; if quotes are text, give --quoting=none"
            yield line, BadRow(reason, detail, reader.line_num + 1 - line)
            continue
        if len(record) > 1 or (record and not record[0].isspace()):
            yield line, record


_COLLECTIONS: dict[type, str] = {list: "a list", dict: "an object"}
_DUPLICATE = object()  # The value of a name that a JSON object has more than once.


def _json_rows(
    lines: Lines, file: TableFile, columns: Sequence[Column], present: set[str]
) -> Iterator[tuple[int, Row]]:
    # Numbers stay texts, so that different ones with many digits are not rounded to one number.
    # NaN and infinities, which JSON lacks, are the only floats.
    decoder = json.JSONDecoder(
        parse_int=str, parse_float=str, parse_constant=float, object_pairs_hook=_json_object
    )
    reason = "not a JSON object"
    for line, text in enumerate(lines, start=1):
        lines.start_row()
        if not text.strip():
            continue
        try:
            record = decoder.decode(text)
        except (ValueError, RecursionError):
            record = None
        if text.lstrip()[:1] == "[":
            detail = f"{reason}, but a list or its start; each line must be an object"
            yield line, BadRow(reason, detail)
        elif not isinstance(record, dict):
            nul = "; it has NUL characters, as UTF-16 does: see --encoding" if "\0" in text else ""
            yield line, BadRow(reason, reason + nul)
        elif missing := missing_columns(file, record, columns):
            yield line, BadRow(*missing)
        else:
            yield line, _json_row(record, columns, present)


def _json_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        record.update((name, _DUPLICATE) for name, count in counts.items() if count > 1)
    return record


def _json_row(record: dict[str, object], columns: Sequence[Column], present: set[str]) -> Row:
    texts = []
    for column in columns:
        value = record.get(column.name)
        if value is _DUPLICATE:
            reason = f"two values of {column.name!r}"
            return BadRow(reason, reason)
        if isinstance(value, bool) and column.kind == "text":
            value = int(value)  # JSON's true and false are the labels 1 and 0.
        is_number = column.kind != "text" and isinstance(value, float)
        if isinstance(value, (bool, list, dict, float)) and not is_number:
            got = _COLLECTIONS.get(type(value)) or json.dumps(value)
            detail = f"{column.name!r} must be text or a number, got {got}"
            return BadRow(f"{column.name!r} is not text", detail)
        texts.append("" if value is None else str(value))
    present.update(column.name for column in columns if column.name in record)
    return texts

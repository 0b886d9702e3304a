"""Tables that others wrote, row by row, within limits that no honest table meets."""

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
from fedpersonal.errors import UserError, escaped

MAX_ROW_LENGTH = 1 << 24  # Characters.
# A gzip file of more characters than this may have so many for each of its bytes.
_MIN_EXPANDED, _MAX_EXPANSION = 1 << 22, 100
_MOST_ROW_LINES = 100  # That are kept, to see whether they are other rows.


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[io.BufferedReader]:
    """Opens a regular file to read; what goes wrong until it is closed becomes a `UserError`."""
    try:
        mode = os.stat(path).st_mode
        # Opening a pipe would wait for whoever writes to it.
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
    """Turns a lack of memory for what is in a file into a `UserError`."""
    try:
        yield
    except MemoryError:
        raise UserError(f"{path}: cannot be read: there is not enough memory") from None


@dataclasses.dataclass
class Lines:
    """The lines of a text file; bytes that its encoding lacks are lone surrogates.

    Attributes:
        path: Where it is; gzipped if its name ends in `.gz`.
        encoding: Of the text; a byte-order mark wins over UTF-8.
        row_length: Characters of the lines that have been read of a row, until `start_row`.
        row_lines: The first of these lines.
    """

    path: str
    encoding: str = UTF_8
    row_length: int = 0
    row_lines: list[str] = dataclasses.field(default_factory=list)

    def __iter__(self) -> Iterator[str]:
        """Yields the lines with their ends, whichever these are.

        Raises:
            UserError: If the file cannot be read, is not of its encoding, a row has more than
                `MAX_ROW_LENGTH` characters, or the file is far longer than its compressed bytes can
                honestly say.
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
                    if len(self.row_lines) < _MOST_ROW_LINES:
                        self.row_lines.append(line)
                    yield line
            except UnicodeError as error:  # Of UTF-16 and its kin, not all can be escaped.
                raise UserError(
                    f"{self.path}, after line {number}: not {self.encoding}: {escaped(str(error))}"
                ) from None

    def start_row(self) -> None:
        """Forgets the lines of the row before."""
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
    """A row that cannot be used: why, in words that are the same for all such rows, and in detail.

    It took so many lines of the file along.
    """

    reason: str
    detail: str
    num_lines: int = 1


Row = typing.Union[Sequence[str], BadRow]


@dataclasses.dataclass(frozen=True)
class RowsWithin:
    """A row with a quoted value whose lines have the form of rows of their own.

    Attributes:
        line: The row's first line in the file, from 1.
        values: Of each such line the values that it would have as a row: the place among the
            wanted columns, and the text.
    """

    line: int
    values: list[list[tuple[int, str]]]


def read_rows(
    file: TableFile,
    wanted: Sequence[Column],
    present: set[str],
    suspects: list[RowsWithin] | None = None,
) -> Iterator[tuple[int, Row]]:
    """Yields a row's first line in the file, from 1, and what it has; blank lines are no rows.

    That is its texts, one of each wanted column ("" where there is none), or what is wrong with
    it. Bytes that the encoding lacks are lone surrogates. The set `present` receives the names of
    the columns that there are, while rows are read; `suspects` the rows that may hold others.
    """
    lines = Lines(file.path, file.encoding)
    if file.separator is None:
        yield from _json_rows(lines, file, wanted, present)
        return
    records = _quoted_records(lines, file) if file.has_quotes else _plain_records(lines, file)
    names = _header(file, records) if file.names is None else list(file.names)
    if missing := missing_columns(file, names, wanted):
        raise UserError(f"{file.path}: {missing[1]}")
    for column in wanted:
        if names.count(column.name) > 1:
            raise UserError(f"{file.path}: two columns are called {column.name!r}")
    present.update(names)
    # After all others each row gets one more value, "": that of columns that are not there.
    places = [names.index(c.name) if c.name in names else len(names) for c in wanted]
    # Of a single place it would give a text and no tuple.
    take = operator.itemgetter(*places, len(names))
    padding = [""] * (len(names) + 1)
    is_first = file.names is not None
    for line, record in records:
        if isinstance(record, BadRow):
            yield line, record
            continue
        if is_first and {c.name for c in wanted if c.required} <= {*record}:
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
                suspects += _rows_within(file, line, record, lines.row_lines, places)
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


def _rows_within(
    file: TableFile, line: int, record: Sequence[str], lines: list[str], places: Sequence[int]
) -> Iterator[RowsWithin]:
    """Yields what the lines of a row would be as rows of their own, if all could be such."""
    rows = [file.divide(text) for text in lines if text.strip()]
    broken = [i for i, value in enumerate(record) if "\n" in value or "\r" in value]
    if not broken or any(len(row) != len(record) for row in rows):
        return
    # What stands before the value in its first line and after it in its last is the row's anyway.
    within = [range(len(record)) for _ in rows]
    within[0] = range(broken[0] + 1, len(record))
    if len(lines) < _MOST_ROW_LINES:
        within[-1] = range(broken[-1])
    values = [
        [(i, row[p]) for i, p in enumerate(places) if p in columns and row[p].strip()]
        for row, columns in zip(rows, within)
    ]
    yield RowsWithin(line, [found for found in values if found])


def _plain_records(lines: Lines, file: TableFile) -> Iterator[tuple[int, Row]]:
    """Yields the values of each line that is not blank, the header among them."""
    for line, text in enumerate(lines, start=1):
        lines.start_row()
        record = file.divide(text)
        if len(record) > 1 or (record and record[0].strip()):
            yield line, record


def _quoted_records(lines: Lines, file: TableFile) -> Iterator[tuple[int, Row]]:
    """Yields the values of each row that is not blank, the header among them."""
    # Strict, or the text after a forgotten quote would pass for one long value.
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
                reason, detail = "malformed", f"malformed: {escaped(str(error))}"
                if file.has_flags:
                    reason += " (if quotes are text, give --quoting=none)"
                    detail += "; if quotes are text, give --quoting=none"
            yield line, BadRow(reason, detail, reader.line_num + 1 - line)
            continue
        if len(record) > 1 or (record and not record[0].isspace()):
            yield line, record


_COLLECTIONS: dict[type, str] = {list: "a list", dict: "an object"}
_TWICE = object()  # The value of a name that a JSON object has more than once.


def _json_rows(
    lines: Lines, file: TableFile, wanted: Sequence[Column], present: set[str]
) -> Iterator[tuple[int, Row]]:
    # Numbers stay as they are written: different ones of many digits are not rounded to one.
    # NaN and infinities, which JSON does not have, are the only floats.
    decoder = json.JSONDecoder(
        parse_int=str, parse_float=str, parse_constant=float, object_pairs_hook=_json_object
    )
    what = "not a JSON object"
    for line, text in enumerate(lines, start=1):
        lines.start_row()
        if not text.strip():
            continue
        try:
            record = decoder.decode(text)
        except (ValueError, RecursionError):
            record = None
        if text.lstrip()[:1] == "[":
            how = f"{what}, but a list or its start; each line must be an object"
            yield line, BadRow(what, how)
        elif not isinstance(record, dict):
            nul = "; it has NUL characters, as UTF-16 does: see --encoding" if "\0" in text else ""
            yield line, BadRow(what, what + nul)
        elif missing := missing_columns(file, record, wanted):
            yield line, BadRow(*missing)
        else:
            yield line, _json_row(record, wanted, present)


def _json_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        record.update((name, _TWICE) for name, count in counts.items() if count > 1)
    return record


def _json_row(record: dict[str, object], wanted: Sequence[Column], present: set[str]) -> Row:
    texts = []
    for column in wanted:
        value = record.get(column.name)
        if value is _TWICE:
            reason = f"two values of {column.name!r}"
            return BadRow(reason, reason)
        if isinstance(value, bool) and column.kind == "text":
            value = int(value)  # JSON's true and false are labels of 1 and 0.
        is_number = column.kind != "text" and isinstance(value, float)
        if isinstance(value, (bool, list, dict, float)) and not is_number:
            got = _COLLECTIONS.get(type(value)) or json.dumps(value)
            must = f"{column.name!r} must be text or a number, got {got}"
            return BadRow(f"{column.name!r} is not text", must)
        texts.append("" if value is None else str(value))
    present.update(column.name for column in wanted if column.name in record)
    return texts

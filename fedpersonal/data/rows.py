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
from collections.abc import Collection, Iterator, Sequence

from fedpersonal.data.sources import is_unicode
from fedpersonal.errors import UserError, check_choice, escaped, listed, quoted

MAX_ROW_LENGTH = 1 << 24  # Characters.
# A gzip file of more characters than this may have so many for each of its bytes.
_MIN_EXPANDED, _MAX_EXPANSION = 1 << 22, 100


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
        encoding: Of the text.
        row_length: Characters of the lines that have been read of a row; to be set to 0 before the
            next row.
    """

    path: str
    encoding: str
    row_length: int = 0

    def __iter__(self) -> Iterator[str]:
        """Yields the lines with their ends, whichever these are.

        Raises:
            UserError: If the file cannot be read, a row has more than `MAX_ROW_LENGTH` characters,
                or the file is far longer than its compressed bytes can honestly say.
        """
        with open_bytes(self.path) as file:
            is_gzip = self.path.lower().endswith(".gz")
            binary = typing.cast(typing.BinaryIO, gzip.GzipFile(fileobj=file) if is_gzip else file)
            with io.TextIOWrapper(binary, self.encoding, "surrogateescape", newline="") as text:
                length, allowed = 0, _MIN_EXPANDED if is_gzip else math.inf
                read = functools.partial(text.readline, MAX_ROW_LENGTH + 1)
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
                    yield line


_SEPARATORS = {".csv": ",", ".tsv": "\t", ".jsonl": None, ".json": None}
KINDS = ("text", "real", "time", "order")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column that is wanted of a table.

    Attributes:
        name: Its name in the file.
        kind: `text`; `real` for finite numbers; `time` for numbers of seconds or dates as in
            ISO 8601, whichever more rows have; `order` for times too, but for text that sorts
            rows where no row has a time.
        required: Whether the file must have it.
        may_be_empty: Whether a text may be blank.
        option: The reader's option that names it, for messages; empty where none does.
    """

    name: str
    kind: str = "text"
    required: bool = True
    may_be_empty: bool = False
    option: str = ""

    def __post_init__(self):
        check_choice("Column", "kind", self.kind, KINDS)


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A file of rows.

    Attributes:
        path: Where it is; gzipped if its name ends in `.gz`.
        separator: What stands between two values; None for JSON lines.
        names: The names of all columns of a file without a header; None if it has one.
        encoding: Of the text; the default is UTF-8, with a byte-order mark or not.
    """

    path: str
    separator: str | None
    names: Sequence[str] | None = None
    encoding: str = "utf-8-sig"

    @classmethod
    def of(cls, path: str | os.PathLike) -> TableFile:
        """Returns the file of a path whose extension tells its format.

        Raises:
            UserError: If the name has none of the known extensions.
        """
        path = os.fspath(path)
        stem = path[: -len(".gz")] if path.lower().endswith(".gz") else path
        extension = os.path.splitext(stem)[1].lower()
        if extension not in _SEPARATORS:
            raise UserError(
                f"{path}: the name of a table must end in .csv, .tsv, .jsonl or .json,"
                " with or without .gz after it"
            )
        return cls(path, _SEPARATORS[extension])


@dataclasses.dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: why, in words that are the same for all such rows, and in detail.

    It took so many lines of the file along.
    """

    reason: str
    detail: str
    num_lines: int = 1


Row = typing.Union[Sequence[str], BadRow]


def read_rows(
    file: TableFile, wanted: Sequence[Column], present: set[str]
) -> Iterator[tuple[int, Row]]:
    """Yields a row's first line in the file, from 1, and what it has; blank lines are no rows.

    That is its texts, one of each wanted column ("" where there is none), or what is wrong with
    it. Bytes that are not UTF-8 are lone surrogates. The set `present` receives the names of
    the columns that there are, while rows are read.
    """
    lines = Lines(file.path, file.encoding)
    if file.separator is None:
        yield from _json_rows(lines, wanted, present)
        return
    records, names = _records(lines, file.separator), file.names
    if names is None:
        line, header = next(records, (0, None))
        if header is None:
            raise UserError(f"{file.path}: the file is empty")
        if isinstance(header, BadRow):
            raise UserError(f"{file.path}, line {line}: the header is {header.detail}")
        names = header
        if not all(map(is_unicode, names)):
            raise UserError(f"{file.path}, line {line}: not UTF-8")
    if lacking := _lacking(names, wanted):
        raise UserError(f"{file.path}: {lacking.detail}")
    for column in wanted:
        if names.count(column.name) > 1:
            raise UserError(f"{file.path}: two columns are called {column.name!r}")
    present.update(names)
    # After all others each row gets one more value, "": that of columns that are not there.
    places = [names.index(c.name) if c.name in names else len(names) for c in wanted]
    # Of a single place it would give a text and no tuple.
    take = operator.itemgetter(*places, len(names))
    padding = [""] * (len(names) + 1)
    for line, record in records:
        if isinstance(record, BadRow):
            yield line, record
        elif len(record) > len(names):
            detail = f"{len(record)} values for {len(names)} columns"
            yield line, BadRow("more values than columns", detail)
        else:
            yield line, take([*record, *padding[len(record) :]])


def _lacking(names: Collection[str], wanted: Sequence[Column]) -> BadRow | None:
    """Returns what is wrong if a required column is not among the `names`."""
    for column in wanted:
        if column.required and column.name not in names:
            way_out = f"; say by --{column.option} which one is meant" if column.option else ""
            for mark, what in ((";", "semicolons"), ("\t", "tabs")):
                if len(names) == 1 and mark in next(iter(names)):
                    way_out = f"; the header has {what}: .csv needs commas, .tsv tabs"
            return BadRow(
                f"no {column.name!r}",
                f"there is no column {quoted(column.name)}; the columns are "
                f"{listed(list(names))}{way_out}",
            )
    return None


def _records(lines: Lines, separator: str) -> Iterator[tuple[int, Row]]:
    """Yields the values of each row that is not blank, the header among them."""
    # Strict, or the text after a forgotten quote would pass for one long value.
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        line = reader.line_num + 1
        lines.row_length = 0
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if str(error).startswith("field larger than"):
                detail = reason = f"a text of more than {csv.field_size_limit():,} characters"
            else:
                reason, detail = "malformed", f"malformed: {escaped(str(error))}"
            yield line, BadRow(reason, detail, reader.line_num + 1 - line)
            continue
        if len(record) > 1 or (record and not record[0].isspace()):
            yield line, record


_COLLECTIONS: dict[type, str] = {list: "a list", dict: "an object"}
_TWICE = object()  # The value of a name that a JSON object has more than once.


def _json_rows(
    lines: Lines, wanted: Sequence[Column], present: set[str]
) -> Iterator[tuple[int, Row]]:
    # Numbers stay as they are written: different ones of many digits are not rounded to one.
    # NaN and infinities, which JSON does not have, are the only floats.
    decoder = json.JSONDecoder(
        parse_int=str, parse_float=str, parse_constant=float, object_pairs_hook=_json_object
    )
    what = "not a JSON object"
    for line, text in enumerate(lines, start=1):
        lines.row_length = 0
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
            yield line, BadRow(what, what)
        else:
            yield line, _lacking(record, wanted) or _json_row(record, wanted, present)


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

"""The rows of .csv, .tsv and .jsonl files, one after another, good ones and bad ones."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gzip
import json
import operator
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO, Union

from fedpersonal.errors import UserError, check_choice

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".jsonl": None, ".json": None}


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
    """

    name: str
    kind: str = "text"
    required: bool = True
    may_be_empty: bool = False

    def __post_init__(self):
        check_choice("Column", "kind", self.kind, ("text", "real", "time", "order"))


@dataclasses.dataclass(frozen=True)
class BadRow:
    """A row that cannot be used.

    Attributes:
        reason: Why, in words that are the same for all such rows.
        detail: The same with the values of this row.
        num_lines: How many lines of the file it took along.
        names: The columns of a row that lacks a wanted one, else None.
    """

    reason: str
    detail: str
    num_lines: int = 1
    names: Sequence[str] | None = None


Row = Union[Sequence[str], BadRow]


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

    def rows(self, wanted: Sequence[Column], present: set[str]) -> Iterator[tuple[int, Row]]:
        """Yields a row's first line in the file, from 1, and what it has; blank lines are no rows.

        That is its texts, one of each wanted column ("" where there is none), or what is wrong with
        it. Bytes that are not UTF-8 are lone surrogates. The set `present` receives the names of
        the columns that there are, while rows are read.

        Raises:
            UserError: If the file cannot be read, has a bad header, or, with a header, lacks a
                required column or has a wanted one twice.
        """
        with _open(self.path, self.encoding) as file:
            if self.separator is None:
                yield from _json_rows(file, wanted, present)
            else:
                yield from self._delimited_rows(_records(file, self.separator), wanted, present)

    def _delimited_rows(
        self, records: Iterator[tuple[int, Row]], wanted: Sequence[Column], present: set[str]
    ) -> Iterator[tuple[int, Row]]:
        names = self.names
        if names is None:
            line, header = next(records, (0, None))
            if header is None:
                raise UserError(f"{self.path}: the file is empty")
            if isinstance(header, BadRow):
                raise UserError(f"{self.path}, line {line}: the header is {header.detail}")
            names = header
        if not all(map(is_unicode, names)):
            raise UserError(f"{self.path}: not UTF-8 text")
        check_columns(self.path, names, wanted)
        for column in wanted:
            if names.count(column.name) > 1:
                raise UserError(f"{self.path}: two columns are called {column.name!r}")
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


def check_columns(where: str, names: Sequence[str], wanted: Sequence[Column]) -> None:
    """Raises a `UserError` if a required column is not among the `names`."""
    for column in wanted:
        if column.required and column.name not in names:
            raise UserError(
                f"{where}: there is no column {column.name!r}; the columns are {', '.join(names)}"
            )


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can write a text, which it cannot with what stands for undecodable bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _records(file: TextIO, separator: str) -> Iterator[tuple[int, Row]]:
    """Yields the values of each row that is not blank, the header among them."""
    # Strict, or the text after a forgotten quote would pass for one long value.
    reader = csv.reader(file, delimiter=separator, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, BadRow("malformed", f"malformed: {error}", reader.line_num + 1 - line)
            continue
        if len(record) > 1 or (record and not record[0].isspace()):
            yield line, record


def _json_rows(
    file: TextIO, wanted: Sequence[Column], present: set[str]
) -> Iterator[tuple[int, Row]]:
    for line, text in enumerate(file, start=1):
        if text.strip():
            try:
                record = json.loads(text)
            except (ValueError, RecursionError):  # The first also of a number of too many digits.
                record = None
            yield line, _json_row(record, wanted, present)


def _json_row(record: object, wanted: Sequence[Column], present: set[str]) -> Row:
    if not isinstance(record, dict):
        return BadRow("not a JSON object", "not a JSON object")
    for column in wanted:
        if column.required and column.name not in record:
            reason = f"no {column.name!r}"
            return BadRow(reason, f"there is {reason}", names=list(record))
    texts = []
    for column in wanted:
        value = record.get(column.name)
        if isinstance(value, bool) and column.kind == "text":
            value = int(value)  # JSON's true and false are labels of 1 and 0.
        if isinstance(value, (bool, list, dict)):
            must = f"{column.name!r} must be text or a number, got {json.dumps(value)[:60]}"
            return BadRow(f"{column.name!r} is not text", must)
        texts.append("" if value is None else str(value))
    present.update(record)
    return texts


@contextlib.contextmanager
def _open(path: str, encoding: str) -> Iterator[TextIO]:
    """Opens a text file, gzipped or not, and turns its failures into `UserError`s."""
    opener: Callable[..., TextIO] = open
    if path.lower().endswith(".gz"):
        opener = gzip.open
    try:
        with opener(path, "rt", encoding=encoding, errors="surrogateescape", newline="") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a valid gzip file: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None

"""The rows of .csv, .tsv and .jsonl files, one after another, good ones and bad ones."""

from __future__ import annotations

import collections
import csv
import dataclasses
import json
import operator
import os
from collections.abc import Iterator, Sequence
from typing import Union

from fedpersonal.data.checks import is_unicode
from fedpersonal.data.tables.lines import Lines
from fedpersonal.errors import UserError, check_choice, escaped, listed, quoted

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
        option: The reader's option that names it, for messages; empty where none does.
    """

    name: str
    kind: str = "text"
    required: bool = True
    may_be_empty: bool = False
    option: str = ""

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
        lines = Lines(self.path, self.encoding)
        if self.separator is None:
            yield from _json_rows(lines, wanted, present)
        else:
            yield from self._delimited_rows(_records(lines, self.separator), wanted, present)

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
                raise UserError(f"{self.path}, line {line}: not UTF-8")
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
            way_out = f"; say by --{column.option} which one is meant" if column.option else ""
            for mark, what in ((";", "semicolons"), ("\t", "tabs")):
                if len(names) == 1 and mark in names[0]:
                    way_out = f"; the header has {what}: .csv needs commas, .tsv tabs"
            raise UserError(
                f"{where}: there is no column {quoted(column.name)}; the columns are"
                f" {listed(names)}{way_out}"
            )


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


def _json_rows(
    lines: Lines, wanted: Sequence[Column], present: set[str]
) -> Iterator[tuple[int, Row]]:
    # Numbers stay as they are written: different ones of many digits are not rounded to one.
    # NaN and infinities, which JSON does not have, are the only floats.
    decoder = json.JSONDecoder(
        parse_int=str, parse_float=str, parse_constant=float, object_pairs_hook=_json_object
    )
    for line, text in enumerate(lines, start=1):
        lines.row_length = 0
        if text.strip():
            try:
                record = decoder.decode(text)
            except (ValueError, RecursionError):
                record = None
            if text.lstrip()[:1] == "[":
                what = "not a JSON object"
                how = f"{what}, but a list or its start; each line must be an object"
                yield line, BadRow(what, how)
            else:
                yield line, _json_row(record, wanted, present)


_COLLECTIONS = {"list": "a list", "dict": "an object"}
_TWICE = object()  # The value of a name that a JSON object has more than once.


def _json_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        record.update((name, _TWICE) for name, count in counts.items() if count > 1)
    return record


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
        if value is _TWICE:
            reason = f"two values of {column.name!r}"
            return BadRow(reason, reason)
        if isinstance(value, bool) and column.kind == "text":
            value = int(value)  # JSON's true and false are labels of 1 and 0.
        is_number = column.kind != "text" and isinstance(value, float)
        if isinstance(value, (bool, list, dict, float)) and not is_number:
            got = _COLLECTIONS.get(type(value).__name__) or json.dumps(value)
            must = f"{column.name!r} must be text or a number, got {got}"
            return BadRow(f"{column.name!r} is not text", must)
        texts.append("" if value is None else str(value))
    present.update(column.name for column in wanted if column.name in record)
    return texts

"""Formats of tables: separators, headers, quotation marks, encodings; and advice on them."""

from __future__ import annotations

import codecs
import dataclasses
import math
import os
from collections.abc import Collection, Sequence

from fedpersonal.errors import UserError, check_choice, join_words, quoted

_BY_EXTENSION = {".csv": ",", ".tsv": "\t", ".jsonl": None, ".json": None}
WHITESPACE = "whitespace"  # Any run of spaces and tabs.
_BY_NAME = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|", "space": " "}
QUOTING = ("auto", "double", "none")
UTF_8 = "utf-8"
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # Begins with the mark of UTF-16.
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_MAX_NAMED_COLUMNS = 12  # In advice.
KINDS = ("text", "real", "time", "order")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column to read from a table.

    Attributes:
        name: The column's name in the file.
        kind: `text`; `real` for finite numbers; `time` for numbers of seconds or ISO 8601
            dates, whichever more rows have; `order` for times too, or for text that sorts rows
            if no row has a time.
        required: Whether the file must have it.
        may_be_empty: Whether a text may be blank.
        option: The reader's option that names the column, for messages, or "".
    """

    name: str
    kind: str = "text"
    required: bool = True
    may_be_empty: bool = False
    option: str = ""

    def __post_init__(self):
        check_choice("Column", "kind", self.kind, KINDS)


@dataclasses.dataclass(frozen=True)
class TableFile(os.PathLike):
    """A table file and its format, which all readers of tables accept in place of a path.

    Attributes:
        path: The path; gzipped if it ends in `.gz`.
        separator: The text between two values: one or more characters, or "whitespace" for any
            run of spaces and tabs; None for JSON lines.
        names: The names of all columns of a file without a header; None if it has one.
        encoding: The text encoding. With the default, UTF-8, a byte-order mark of UTF-16 or UTF-32
            takes precedence.
        quoting: "double": a value in double quotes may hold separators, line ends and doubled
            quotes; "none": quotes are text; "auto": "none" if tabs, white space or several
            characters divide values, else "double", but a value that holds other rows is
            refused.
        has_flags: Whether flags of a program can change the format, for messages.
    """

    path: str
    separator: str | None
    names: Sequence[str] | None = None
    encoding: str = UTF_8
    quoting: str = "auto"
    has_flags: bool = True

    def __post_init__(self):
        check_choice("TableFile", "quoting", self.quoting, QUOTING)
        check_encoding(self.encoding)
        _check_separator(self.separator)
        if self.quoting == "double" and not self._can_quote:
            raise UserError(
                f"--quoting=double needs a --separator of one character, not {self.separator!r}"
            )

    def __fspath__(self) -> str:
        return self.path

    @classmethod
    def from_path(
        cls,
        path: str | os.PathLike,
        *,
        separator: str | None = None,
        header: Sequence[str] = (),
        encoding: str = UTF_8,
        quoting: str = "auto",
        has_flags: bool = True,
    ) -> TableFile:
        """Returns the file of a path; the extension determines the format.

        Args:
            path: The path; a `TableFile` is returned as it is.
            separator: As of `TableFile`, or a name such as "tab"; None for the extension's.
            header: The names of columns of a file without a header.
            encoding: As of `TableFile`.
            quoting: As of `TableFile`.
            has_flags: As of `TableFile`.

        Raises:
            UserError: If the name has an unknown extension and no separator is given, if JSON lines
                are given a header, a separator or quoting, or an option is invalid.
        """
        if isinstance(path, TableFile):
            return path
        path = os.fspath(path)
        stem = path[: -len(".gz")] if path.lower().endswith(".gz") else path
        extension = os.path.splitext(stem)[1].lower()
        by_name = _BY_EXTENSION.get(extension, ",")
        if extension not in _BY_EXTENSION and separator is None:
            advice = ", or --separator must name the separator" if has_flags else ""
            raise UserError(
                f"{path}: the name of a table must end in .csv, .tsv, .jsonl or .json,"
                f" with or without .gz after it{advice}"
            )
        if by_name is None:
            options = {"separator": separator, "header": header, "quoting": quoting != "auto"}
            for flag in (flag for flag, value in options.items() if value):
                raise UserError(f"{path}: JSON lines have no --{flag}: leave it out")
        divider = by_name if separator is None else _BY_NAME.get(separator, separator)
        return cls(path, divider, tuple(header) or None, encoding, quoting, has_flags)

    @property
    def _can_quote(self) -> bool:
        return self.separator is None or len(self.separator) == 1

    @property
    def has_quotes(self) -> bool:
        """Whether a value may stand in double quotes."""
        if self.quoting != "auto":
            return self.quoting == "double"
        return self._can_quote and self.separator not in ("\t", " ")

    @property
    def undecodable(self) -> str:
        """The message about bytes that the encoding cannot decode."""
        return f"not {'UTF-8' if is_utf_8(self.encoding) else self.encoding}"

    @property
    def other_encoding(self) -> str:
        """The advice about bytes that the encoding cannot decode."""
        if not self.has_flags:
            return ""
        return "; if it is another encoding, name it, such as --encoding=latin-1"

    def divide(self, line: str) -> list[str]:
        """Returns the values of a line without quoted values."""
        return _divide(line, self.separator or ",")


def _divide(line: str, separator: str) -> list[str]:
    text = line.rstrip("\r\n")
    return text.split() if separator == WHITESPACE else text.split(separator)


def check_encoding(encoding: str) -> None:
    """Raises a `UserError` unless Python knows a text encoding of this name."""
    try:
        "a".encode(encoding)
    except (LookupError, UnicodeError, ValueError):
        raise UserError(
            f"--encoding is {encoding}; it must be a text encoding that Python knows, such as"
            " utf-8, utf-16 or latin-1"
        ) from None


def _check_separator(separator: str | None) -> None:
    if separator in (None, WHITESPACE):
        return
    assert separator is not None
    wrong = [c for c in separator if c.isalnum() or c in '"\r\n\0']
    if wrong or not separator:
        names = ", ".join(name for name in _BY_NAME if name.isalpha())
        raise UserError(
            f"--separator is {separator!r}; it must be one of {names}, {WHITESPACE}, or the "
            "characters themselves, such as :: (no letters, digits or quotation marks)"
        )


def is_utf_8(encoding: str) -> bool:
    """Returns whether an encoding is UTF-8, in any spelling."""
    return codecs.lookup(encoding).name == UTF_8


def encoding_of(start: bytes, encoding: str) -> str:
    """Returns the encoding that decodes a file, from its first bytes.

    A byte-order mark takes precedence if `encoding` is UTF-8 or does not name a byte order.
    """
    marked = next((name for m, name in _BYTE_ORDER_MARKS.items() if start.startswith(m)), "")
    name = codecs.lookup(encoding).name
    return marked if marked and (name == UTF_8 or name.startswith(marked)) else encoding


def missing_columns(
    file: TableFile, names: Collection[str], columns: Sequence[Column]
) -> tuple[str, str] | None:
    """Returns a short and a full message if required columns are missing from `names`, else None.

    The full message names the flags that help: those of columns, or those of the header and the
    separator if the first line seems to be data or to have another separator.
    """
    missing = [c for c in columns if c.required and c.name not in names]
    if not missing:
        return None
    shown = ", ".join(quoted(c.name) for c in missing)
    start = f"there {'is no column' if len(missing) == 1 else 'are no columns'} {shown}"
    if file.names is not None:
        start += " in --header"
    advice = _format_advice(file, names, columns, missing)
    full = f"{start}; the columns are {join_words(list(names))}{advice}"
    return f"no {', '.join(repr(c.name) for c in missing)}", full


def _format_advice(
    file: TableFile, names: Collection[str], columns: Sequence[Column], missing: Sequence[Column]
) -> str:
    options = [f"--{c.option}" for c in missing if c.option]
    which = "which one is meant" if len(options) == 1 else "which ones are meant"
    named = " and ".join(filter(None, [", ".join(options[:-1]), *options[-1:]]))
    by_columns = f"; say by {named} {which}" if options else ""
    if file.separator is None or file.names is not None:
        return by_columns
    line = file.separator.join(names)
    if "\0" in line:
        order = "le" if line[1:2] == "\0" else "be"
        return f"; they have NUL characters, as UTF-16 does: give --encoding=utf-16-{order}"
    num_required = sum(c.required for c in columns)
    has_enough = len(names) >= max(2, num_required)
    separator = file.separator if has_enough else _likely_separator(line, columns)
    parts = _divide(line, separator)
    is_other = separator != file.separator
    if not file.has_flags:
        divided = "; the header seems to have another separator: .csv needs commas, .tsv tabs"
        return divided if is_other else by_columns
    if not file.has_quotes and all(f'"{c.name}"' in parts for c in missing):
        return "; the names stand in quotes: give --quoting=double"
    flags = [f"--separator={_separator_name(separator)}"] if is_other else []
    signs = [f"{_separator_name(separator)!r} seems to divide its values"] if is_other else []
    if all(c.name in parts for c in columns if c.required):
        return f"; {signs[0]}: give {flags[0]}" if signs else by_columns
    header = _header(columns, len(parts))
    if any(map(is_finite, parts)):
        signs.insert(0, "the first line looks like data")
        flags.append(f"{header} (in the file's order)")
        return f"; {', and '.join(signs)}: give {' and '.join(flags)}"
    divided = f"; {signs[0]}: give {flags[0]}" if signs else ""
    has_numbers = any(c.required and c.kind == "real" for c in columns)
    if len(missing) < num_required or is_other or has_numbers:  # The first line names columns.
        return divided + by_columns
    return f"{by_columns}; if the first line is data, give {header} (in the file's order)"


def _likely_separator(line: str, columns: Sequence[Column]) -> str:
    """Returns the separator that divides a line into the columns, or most likely does."""
    required = {c.name for c in columns if c.required}
    candidates = ["\t", "::", ";", "|", ",", " "]
    if "  " in line or (" " in line and "\t" in line):
        candidates.append(WHITESPACE)
    divided = {separator: _divide(line, separator) for separator in candidates}
    for least in (len(required), 2):
        enough = [s for s, parts in divided.items() if len([*filter(None, parts)]) >= max(2, least)]
        named = [s for s in enough if required <= {*divided[s]}]
        if WHITESPACE in enough and not named and " " in enough[:1]:
            return WHITESPACE
        if enough:
            return (named or enough)[0]
    return ","


def _separator_name(separator: str) -> str:
    """Returns the flag's value for a separator; shells and readers may lose white space."""
    return next((name for name, sign in _BY_NAME.items() if sign == separator), separator)


def _header(columns: Sequence[Column], number: int) -> str:
    """Returns a flag that names `number` columns, required ones first; "-" names no column."""
    names = [c.name for c in sorted(columns, key=lambda c: not c.required)]
    required = sum(c.required for c in columns)
    names = [*names, *["-"] * min(number, _MAX_NAMED_COLUMNS)][: max(number, required)]
    more = f",... with {number} names" if number > len(names) else ""
    return f"--header={','.join(names)}{more}"


def is_finite(text: str) -> bool:
    """Returns whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False

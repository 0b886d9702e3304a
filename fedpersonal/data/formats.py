"""How tables are written: separators, headers, quotation marks, encodings; and advice on them."""

from __future__ import annotations

import codecs
import dataclasses
import math
import os
from collections.abc import Collection, Sequence

from fedpersonal.errors import UserError, check_choice, listed, quoted

_BY_EXTENSION = {".csv": ",", ".tsv": "\t", ".jsonl": None, ".json": None}
WHITESPACE = "whitespace"  # Any run of spaces and tabs.
_BY_NAME = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|", "space": " "}
QUOTING = ("auto", "double", "none")
UTF_8 = "utf-8"
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # Begins as UTF-16's does.
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_MOST_NAMED = 12  # Columns, in advice.
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
class TableFile(os.PathLike):
    """A file of rows, which all readers of tables take in place of its path.

    Attributes:
        path: Where it is; gzipped if its name ends in `.gz`.
        separator: What divides two values: one or more characters, or "whitespace" for any run of
            spaces and tabs; None for JSON lines.
        names: The names of all columns of a file without a header; None if it has one.
        encoding: Of the text. With the default, UTF-8, a byte-order mark of UTF-16 or UTF-32 wins.
        quoting: "double": a value may stand in double quotes, and then hold separators, line ends
            and doubled quotes; "none": quotes are text; "auto": "none" where tabs, white space or
            several characters divide values, else "double", but a value that holds other rows is
            refused.
        has_flags: Whether flags of a program can change the four before, for messages.
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
    def of(
        cls,
        path: str | os.PathLike,
        *,
        separator: str | None = None,
        header: Sequence[str] = (),
        encoding: str = UTF_8,
        quoting: str = "auto",
        has_flags: bool = True,
    ) -> TableFile:
        """Returns the file of a path whose extension tells its format.

        Args:
            path: The path; a `TableFile` is returned as it is.
            separator: As of `TableFile`, also by name, such as "tab"; None for the extension's.
            header: The names of columns of a file without a header.
            encoding: As of `TableFile`, as the others are.
            quoting: Alike.
            has_flags: Alike.

        Raises:
            UserError: If the name has none of the known extensions and no separator is given, if
                JSON lines are to have a header, a separator or quoting, or one of them is of no
                use.
        """
        if isinstance(path, TableFile):
            return path
        path = os.fspath(path)
        stem = path[: -len(".gz")] if path.lower().endswith(".gz") else path
        extension = os.path.splitext(stem)[1].lower()
        by_name = _BY_EXTENSION.get(extension, ",")
        if extension not in _BY_EXTENSION and separator is None:
            way_out = ", or --separator say what divides its values" if has_flags else ""
            raise UserError(
                f"{path}: the name of a table must end in .csv, .tsv, .jsonl or .json,"
                f" with or without .gz after it{way_out}"
            )
        if by_name is None:
            idle = {"separator": separator, "header": header, "quoting": quoting != "auto"}
            for flag in (flag for flag, value in idle.items() if value):
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
        """What is wrong with bytes that the encoding lacks."""
        return f"not {'UTF-8' if is_utf_8(self.encoding) else self.encoding}"

    @property
    def other_encoding(self) -> str:
        """The advice of a message on such bytes."""
        if not self.has_flags:
            return ""
        return "; if it is another encoding, name it, such as --encoding=latin-1"

    def divide(self, line: str) -> list[str]:
        """Returns the values of a line that has no quoted ones."""
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
    """Whether an encoding is UTF-8, in whichever spelling."""
    return codecs.lookup(encoding).name == UTF_8


def encoding_of(start: bytes, encoding: str) -> str:
    """Returns what decodes a file of an encoding, given how it starts.

    That is the encoding of its byte-order mark, if `encoding` is UTF-8 or has no such marks.
    """
    marked = next((name for m, name in _BYTE_ORDER_MARKS.items() if start.startswith(m)), "")
    known = codecs.lookup(encoding).name
    return marked if marked and (known == UTF_8 or known.startswith(marked)) else encoding


def missing_columns(
    file: TableFile, names: Collection[str], wanted: Sequence[Column]
) -> tuple[str, str] | None:
    """Returns what is wrong if required columns are not among the `names`: briefly, and in full.

    In full it names the flags that help: those of columns, or those of the header and the
    separator, where the first line looks as if it had none or another one.
    """
    missing = [c for c in wanted if c.required and c.name not in names]
    if not missing:
        return None
    shown = ", ".join(quoted(c.name) for c in missing)
    start = f"there {'is no column' if len(missing) == 1 else 'are no columns'} {shown}"
    if file.names is not None:
        start += " in --header"
    full = f"{start}; the columns are {listed(list(names))}{_way_out(file, names, wanted, missing)}"
    return f"no {', '.join(repr(c.name) for c in missing)}", full


def _way_out(
    file: TableFile, names: Collection[str], wanted: Sequence[Column], missing: Sequence[Column]
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
    least = sum(c.required for c in wanted)
    separator = file.separator if len(names) >= max(2, least) else _likely(line, wanted)
    parts = _divide(line, separator)
    is_other = separator != file.separator
    if not file.has_flags:
        divided = "; the header seems to have another separator: .csv needs commas, .tsv tabs"
        return divided if is_other else by_columns
    if not file.has_quotes and all(f'"{c.name}"' in parts for c in missing):
        return "; the names stand in quotes: give --quoting=double"
    flags = [f"--separator={_spelled(separator)}"] if is_other else []
    found = [f"{_spelled(separator)!r} seems to divide its values"] if is_other else []
    if all(c.name in parts for c in wanted if c.required):
        return f"; {found[0]}: give {flags[0]}" if found else by_columns
    header = _header(wanted, len(parts))
    if any(map(is_finite, parts)):
        found.insert(0, "the first line looks like data")
        flags.append(f"{header} (in the file's order)")
        return f"; {', and '.join(found)}: give {' and '.join(flags)}"
    divided = f"; {found[0]}: give {flags[0]}" if found else ""
    has_numbers = any(c.required and c.kind == "real" for c in wanted)
    if len(missing) < least or is_other or has_numbers:  # The first line names columns.
        return divided + by_columns
    return f"{by_columns}; if the first line is data, give {header} (in the file's order)"


def _likely(line: str, wanted: Sequence[Column]) -> str:
    """Returns the separator that gives a line the columns that are wanted, or most likely does."""
    required = {c.name for c in wanted if c.required}
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


def _spelled(separator: str) -> str:
    """Returns what a flag's value is for a separator that shells or eyes may lose."""
    return next((name for name, sign in _BY_NAME.items() if sign == separator), separator)


def _header(wanted: Sequence[Column], number: int) -> str:
    """Returns a flag that names so many columns, the required ones first; - names none."""
    names = [c.name for c in sorted(wanted, key=lambda c: not c.required)]
    required = sum(c.required for c in wanted)
    names = [*names, *["-"] * min(number, _MOST_NAMED)][: max(number, required)]
    more = f",... with {number} names" if number > len(names) else ""
    return f"--header={','.join(names)}{more}"


def is_finite(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False

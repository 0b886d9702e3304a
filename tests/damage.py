"""Damage to files, as Hypothesis draws it, and what a reader may make of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sqlite3

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from fedpersonal.errors import UserError
from fedpersonal.files import digest

WORDS = [
    *(b'"', b'"\n', b'"\n"', b"\0", b'\n"', b"\\", b"\\ud800", b"\\u0000", b"\xff"),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b"\n", b"\r\n", b"\n\n", b" \n", b"\x1c", b"\xc2\x85"),
    *(b"\xe2\x80\xa8", b"\x1b[2J", b",", b"\t", b":", b"::", b"{", b"}", b"[", b"]", b"[" * 3000),
    *(b'{"user":' * 3000, b"9" * 5000, b"NaN", b"-Infinity", b"1e999", b"null", b"true", b"-0"),
    *(b"now", b"0x1", b"1_0", b'"user": "b", ', b"user,", b"x" * 200_000, b"99999-01-01"),
    *(b"2020-01-01", b">", b"\0" * 9, b"\xc2\xb2", b"0", b"7", b"-", b".", b"PK\x03\x04"),
    b"[" * 970 + b"]" * 970,
]
# Kind, place, length and word. Half of the places are those where something begins or ends; words
# go by number, as Hypothesis takes its time to print long ones.
BYTES = st.lists(
    st.tuples(
        st.sampled_from(["insert", "replace", "delete", "repeat", "cut", "flip"]),
        st.tuples(st.booleans(), st.one_of(st.integers(0, 400), st.integers(0, 10**6))),
        st.one_of(st.integers(1, 40), st.integers(1, 2000)),
        st.one_of(st.integers(0, len(WORDS) - 1), st.binary(min_size=1, max_size=3)),
    ),
    min_size=1,
    max_size=4,
)
_MARKS = re.compile(rb'^|[,\t:{}"\n\[]|PK')


def change_bytes(content, changes):
    """Returns a file's content after changes of `BYTES`."""
    for kind, (at_mark, place), length, word in changes:
        word = WORDS[word] if isinstance(word, int) else word
        marks = [match.end() for match in _MARKS.finditer(content)] if at_mark else ()
        start = marks[place % len(marks)] if marks else place % (len(content) + 1)
        before, part, after = content[:start], content[start:][:length], content[start + length :]
        content = {
            "insert": lambda: before + word + part + after,  # noqa: B023
            "replace": lambda: before + word + after,  # noqa: B023
            "delete": lambda: before + after,  # noqa: B023
            "repeat": lambda: before + part + part + after,  # noqa: B023
            "cut": lambda: before,  # noqa: B023
            "flip": lambda: before + bytes(b ^ 1 << place % 8 for b in part) + after,  # noqa: B023
        }[kind]()
    return content


TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "text",
            "\ud800",
            "a\nb",
            "\x1b[2J",
            "x" * 5000,
            "1",
            "nan",
            "os",
            "string",
            "0.1.",
            "-1",
        ]
    ),
    st.text(max_size=4),
)
_DEEP = [None]
for _ in range(400):
    _DEEP = [_DEEP]
VALUES = st.one_of(
    st.sampled_from([None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 0.5, 1e300, [], {}, [1]]),
    st.sampled_from([{"a": 1}, [[]], [None, 2, "x"], ["x"] * 3, [-1, -1], [2**40], {"a": {}}]),
    st.just(_DEEP),
    st.integers(-9, 9),
    TEXTS,
)


@st.composite
def other_json(draw, value):
    """Draws what a JSON value is when one thing somewhere in it is changed."""
    if not value or not isinstance(value, (dict, list)) or draw(st.integers(0, 7)) == 0:
        return draw(VALUES)
    places = list(value) if isinstance(value, dict) else range(len(value))
    place = draw(st.sampled_from(places))
    kind = draw(st.sampled_from(["deeper", "deeper", "deeper", "drop", "add", "swap"]))
    if isinstance(value, list):
        before, after = value[:place], value[place + 1 :]
        if kind == "drop":
            return before + after
        other = value[0] if kind == "swap" else draw(other_json(value[place]))
        return [*before, *([value[place]] if kind == "add" else []), other, *after]
    if kind == "drop":
        return {name: item for name, item in value.items() if name != place}
    if kind == "add":
        return {**value, draw(TEXTS): draw(VALUES)}
    if kind == "swap":
        return {**value, place: value[draw(st.sampled_from(places))]}
    return {**value, place: draw(other_json(value[place]))}


def with_digest(value):
    """Returns a JSON object as `write_json(checked=True)` writes it, in whatever depth, as bytes.

    Of bytes, such as an .npz file's, it returns these with their digest behind them.
    """
    if isinstance(value, bytes):
        return value + bytes.fromhex(digest(value))
    text = json.dumps(value, sort_keys=True).encode(errors="surrogatepass")
    return json.dumps({**value, "digest": digest(text)}).encode()


_SHAPES = st.sampled_from([(), (0,), (1,), (2,), (3, 1), (0, 3), (1, 1, 1)])
_DTYPES = st.sampled_from(["float32", "float64", "int64", "bool", "U3", "S2", "M8[s]", "complex64"])


@st.composite
def other_arrays(draw, arrays):
    """Draws arrays by name of which some are renamed, missing, or of another shape or dtype."""
    arrays = dict(arrays)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(arrays))) if arrays else "none"
        array = arrays.pop(name, np.zeros(2))
        kind = draw(st.sampled_from(["drop", "rename", "shape", "dtype", "cut", "other"]))
        if kind == "rename":
            names = st.one_of(st.sampled_from([*arrays, "local ", "global ", "clients"]), TEXTS)
            # What NumPy cannot write: a file beside the members.
            name = draw(names).encode(errors="replace").decode().replace("\0", "")
        elif kind == "shape":
            array = np.resize(array, draw(_SHAPES))
        elif kind == "dtype":
            array = np.zeros(array.shape, draw(_DTYPES))
        elif kind == "cut":
            array = array[:-1] if array.ndim else array
        elif kind == "other" and arrays:
            array = arrays[draw(st.sampled_from(sorted(arrays)))]
        if kind != "drop":
            arrays[name] = array
    return arrays


def packed(arrays):
    """Returns arrays as `pack_arrays` does, whatever their names are."""
    file = io.BytesIO()
    np.savez(file, **{"x": np.zeros(0), **arrays})
    return with_digest(file.getvalue())


_CELLS = st.one_of(
    st.sampled_from([None, -1, 7, 2**62, 0.5, "text", "[]", "[" * 5000, b"", b"x" * 12, "a"]),
    TEXTS.filter(lambda text: text.isprintable() or "\n" in text),
    st.binary(max_size=16),
)
_SCHEMES = [
    "DROP TABLE {table}",
    "ALTER TABLE {table} RENAME TO other",
    "ALTER TABLE {table} RENAME COLUMN {column} TO other",
    "ALTER TABLE {table} ADD COLUMN more",
    "CREATE TABLE more (x)",
    "INSERT INTO {table} SELECT * FROM {table} LIMIT 1",
    "PRAGMA user_version = 7",
    "PRAGMA journal_mode = WAL",
]


# Kind, table, column and row by number, and another value.
ROWS = st.tuples(
    st.sampled_from(["set", "set", "set", "delete", "delete all", *_SCHEMES]),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    _CELLS,
)


def change_rows(path, change):
    """Changes a SQLite file as `ROWS` says."""
    kind, *numbers, cell = change
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        known = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        tables = [name for (name,) in connection.execute(known)]
        table = tables[numbers[0] % len(tables)]
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")] or [0]
        column, row = columns[numbers[1] % len(columns)], rows[numbers[2] % len(rows)]
        with contextlib.suppress(sqlite3.Error):
            if kind == "set":
                where = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
                connection.execute(where, [cell, row])
            elif kind == "delete":
                connection.execute(f"DELETE FROM {table} WHERE rowid = ?", [row])
            elif kind == "delete all":
                connection.execute(f"DELETE FROM {table}")
            else:
                connection.execute(kind.format(table=table, column=column))


def outcome(read, path):
    """Returns what is read, or None if that is refused in a line that names the file."""
    try:
        return read()
    except UserError as error:
        said = str(error)
        assert os.fspath(path) in said and said.isprintable() and len(said) < 2000, said
        return None


# Of tests that take long: a case for 16 of the others.
few = settings(max_examples=max(1, settings.default.max_examples // 16))

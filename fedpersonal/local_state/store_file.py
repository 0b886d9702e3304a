"""The file of a store of local state: what is in it, and whether it is whole."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError, listed
from fedpersonal.model.partition import VariableSpec

_FORMAT = "fedpersonal local state store 2"
# So many bytes does SQLite put in a row.
_LARGEST = 10**9
_TABLES = {"about", "local_state", "run"}
# What SQLite says, and what that means here.
_MEANINGS = {
    "locked": "another process has it open; wait or end it",
    "full": "the disk is full, nothing of this round was written; make room and run it again",
    "disk I/O error": "the disk does not work or a limit is reached (df, ulimit -f); nothing of "
    "this round was written",
    "unable to open": "it cannot be opened; its folder must exist and be writable",
    "readonly": "it cannot be written to; see to the permissions of the file and its folder",
    "not a database": "it is no local state store, or a damaged one; give another folder",
    "malformed": "it is no local state store, or a damaged one; give another folder",
    "user-defined function": "it is damaged: a name is not UTF-8; give another folder",
    "Could not decode": "it is damaged: a name is not UTF-8; give another folder",
    "no such column": "it is no local state store, or a damaged one; give another folder",
}
_ANOTHER = "{} is no local state store of this version, or a damaged one; give another folder."


class Sums(NamedTuple):
    """What was committed: the round or None, how many rows, and the sum of their checksums."""

    round_number: int | None
    num_clients: int
    checksum: int


def read_sums(connection: sqlite3.Connection, described: str) -> Sums:
    """Returns what the last commit says of the rows; their variables are those described."""
    # The state may be large: whoever opens a store need not read it.
    row = connection.execute("SELECT round_number, num_clients, checksum FROM run").fetchone()
    if row is None:
        return Sums(None, 0, 0)
    return Sums(row[0], row[1], row[2] - checksum_of_run(row[0], described))


def check_rows(path: str, connection: sqlite3.Connection, width: int, described: str) -> int | None:
    """Compares all rows, of so many bytes each, with what was committed.

    Returns:
        The round, or None before the first commit.

    Raises:
        UserError: If the rows are others.
    """
    connection.create_function("checksum_of", 2, checksum_of, deterministic=True)
    rounds = connection.execute("SELECT round_number, num_clients, checksum FROM run").fetchall()
    if len(rounds) > 1 or not all(type(n) is int for row in rounds for n in row):
        raise damage(path, "what it says of the run was changed")
    round_number, count, checksum = read_sums(connection, described)
    found = connection.execute(
        "SELECT COUNT(*), SUM(checksum), SUM(checksum IS NOT checksum_of(client, value)), "
        "SUM(length(value) IS NOT ?) FROM local_state",
        [width],
    ).fetchone()
    if found[0] != count:
        raise damage(path, f"it has the rows of {found[0]} clients, not of {count}")
    changed = max(found[2] or 0, found[3] or 0)
    if changed or (found[1] or 0) != checksum:
        which = f"{changed} of its {count} rows were" if changed else "what it says was"
        raise damage(path, f"{which} changed")
    if connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise damage(path, "its index does not fit its rows")
    return round_number


def damage(path: str, what: str) -> UserError:
    """Returns an error that says what is wrong with a store's content."""
    return UserError(
        f"local state store {path} is damaged: {what} since the last commit. Put back a copy of it "
        "or give another folder."
    )


def describe(connection: sqlite3.Connection, described: str) -> list[str]:
    """Returns the format and the variables of a store, once an empty file is made one."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not tables:
        connection.execute("CREATE TABLE about (place INTEGER PRIMARY KEY, text TEXT)")
        # Rows stand in the order of their arrival, which fills pages; the index is of names alone.
        connection.execute(
            "CREATE TABLE local_state (client TEXT UNIQUE NOT NULL, value BLOB NOT NULL, "
            "checksum INTEGER NOT NULL)"
        )
        connection.execute(
            "CREATE TABLE run (round_number INTEGER NOT NULL, state BLOB NOT NULL, "
            "num_clients INTEGER NOT NULL, checksum INTEGER NOT NULL)"
        )
        connection.executemany("INSERT INTO about (text) VALUES (?)", [(_FORMAT,), (described,)])
    elif not _TABLES <= tables:
        return []
    return [text for (text,) in connection.execute("SELECT text FROM about ORDER BY place")]


def checksum_of(client: object, row: object) -> int:
    """Returns that of a client's row: 32 bits; of what is none, -1."""
    if not isinstance(client, str) or not isinstance(row, bytes):
        return -1
    return zlib.crc32(row, zlib.crc32(client.encode()))


def checksum_of_run(round_number: int, described: str) -> int:
    """Returns what is added to the sum of the rows' checksums: 32 bits."""
    return zlib.crc32(f"{round_number} {described}".encode())


def describe_variables(variables: Sequence[VariableSpec]) -> str:
    """Returns local variables as a store names them."""
    return json.dumps([[v.name, list(v.shape), v.dtype.name] for v in variables])


def variables_of(path: str, about: Sequence[str]) -> list[VariableSpec]:
    """Returns the variables that a store says it holds."""

    def variable(name: str, shape: Sequence[int], dtype: str) -> VariableSpec:
        known, sizes = tf.as_dtype(dtype), tuple(int(size) for size in shape)
        is_number = np.dtype(known.as_numpy_dtype).kind != "O"
        if not is_number or min(sizes, default=0) < 0 or math.prod(sizes) > _LARGEST:
            raise ValueError(f"no variable: {name} {shape} {dtype}")
        return VariableSpec(name, name.split("/")[0], sizes, known, True, tf.zeros)

    try:
        _, described = about
        return [variable(*parts) for parts in json.loads(described)]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(_ANOTHER.format(path)) from error


def check_same(path: str, found: Sequence[str], described: str) -> None:
    """Raises a UserError unless a store is of this version and holds these variables."""
    if not found or found[0] != _FORMAT:
        raise UserError(_ANOTHER.format(path))
    if found[1:] != [described]:
        ours, theirs = (
            listed([f"{v.name} {[*v.shape]} {v.dtype.name}" for v in variables_of(path, about)])
            for about in (["", described], found)
        )
        raise UserError(
            f"{path} holds the local variables of another model: {theirs}; this model's are "
            f"{ours}. Give another folder."
        )


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Turns SQLite's complaints into one line that names the file."""
    try:
        yield
    # A name may hold half a surrogate pair, which no file can.
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        known = (meaning for said, meaning in _MEANINGS.items() if said in str(error))
        raise UserError(f"local state store {path}: {next(known, error)}.") from error

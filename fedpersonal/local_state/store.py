"""What clients keep from round to round, on disk.

In a deployment each client holds its own local variables; a simulation holds them all, here: one
SQLite file with a row for each client that has ever taken part, and beside these rows the state of
the run that they belong to. Both change in one transaction, so that a process killed at any moment
leaves the local states of exactly the round whose global state is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.partition import VariableSpec

_FORMAT = "fedpersonal local state store 1"
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
}
# SQLite's own bound on the parameters of a query was 999 for long.
_IDS_A_QUERY = 500


class SavedRun(NamedTuple):
    """The state of a run.

    Attributes:
        round_number: The round after which it was committed.
        state: Whatever was committed.
    """

    round_number: int
    state: bytes


class LocalStateStore:
    """Rows of local variables keyed by client, and the state of the run; open it with `open`.

    Attributes:
        path: The file.
        variables: The local variables, whose values a row holds in this order.
        saved_round: The round of the last commit, or None.
    """

    def __init__(
        self, path: str, variables: Sequence[VariableSpec], connection: sqlite3.Connection
    ):
        """Use `open`."""
        self.path = path
        self.variables = tuple(variables)
        self._connection = connection
        # The state may be large: whoever opens a store need not read it.
        row = connection.execute("SELECT round_number FROM run").fetchone()
        self.saved_round = None if row is None else row[0]
        self._sizes = [v.dtype.size * int(np.prod(v.shape)) for v in self.variables]

    @classmethod
    def open(cls, path: str | os.PathLike, variables: Sequence[VariableSpec]) -> LocalStateStore:
        """Opens a store, or makes an empty one, and keeps other processes out of it.

        Raises:
            UserError: If it cannot be read or written, another process has it open, or it holds
                other variables than these.
        """
        path = os.fspath(path)
        described = json.dumps([[v.name, list(v.shape), v.dtype.name] for v in variables])
        with _explained(path):
            # For the owner's eyes alone. Where that fails, SQLite says why.
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            # Transactions are begun and ended by hand.
            connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        try:
            with _explained(path):
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN EXCLUSIVE")
                _check_same(path, _describe(connection, described), described)
                # What cannot be written to is refused now, not when rounds have been run.
                connection.execute("PRAGMA user_version = 1")
                connection.execute("COMMIT")
                return cls(path, variables, connection)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def reopen(cls, path: str | os.PathLike) -> LocalStateStore:
        """Opens a store that is there, whatever its variables are.

        Args:
            path: The file.

        Raises:
            UserError: If there is none, it is something else, or another process has it open.
        """
        path = os.fspath(path)
        if not os.path.isfile(path):
            raise UserError(f"{path}: no such file; no client of this run keeps local variables.")
        with _explained(path), contextlib.closing(sqlite3.connect(path, timeout=0)) as connection:
            described = connection.execute("SELECT text FROM about ORDER BY place").fetchall()[-1]
        variables = [
            VariableSpec(name, name.split("/")[0], tuple(shape), tf.as_dtype(dtype), True, tf.zeros)
            for name, shape, dtype in json.loads(*described)
        ]
        return cls.open(path, variables)

    def clients(self) -> list[str]:
        """Returns the names of the clients that have kept something, in order."""
        with _explained(self.path):
            rows = self._connection.execute("SELECT client FROM local_state ORDER BY client")
            return [client for (client,) in rows]

    @property
    def num_clients(self) -> int:
        """How many clients have kept something."""
        with _explained(self.path):
            return self._connection.execute("SELECT COUNT(*) FROM local_state").fetchone()[0]

    def read(self, client_ids: Sequence[str]) -> list[bytes | None]:
        """Returns each client's row, or None where a client has kept nothing."""
        rows: dict[str, bytes] = {}
        ids = list(client_ids)
        with _explained(self.path):
            for start in range(0, len(ids), _IDS_A_QUERY):
                some = ids[start : start + _IDS_A_QUERY]
                marks = ", ".join("?" * len(some))
                rows.update(
                    self._connection.execute(
                        f"SELECT client, value FROM local_state WHERE client IN ({marks})", some
                    )
                )
        return [rows.get(client) for client in ids]

    def saved(self) -> SavedRun | None:
        """Returns the state of the run, or None before its first commit."""
        with _explained(self.path):
            row = self._connection.execute("SELECT round_number, state FROM run").fetchone()
        return None if row is None else SavedRun(*row)

    def commit(self, changes: Mapping[str, bytes], saved: SavedRun) -> None:
        """Writes clients' rows and the state that they belong to, together or not at all.

        Raises:
            UserError: If that is impossible; the store is then as it was.
        """
        width = sum(self._sizes)
        for client, row in changes.items():
            # SQLite would turn a number into a text, under which it is not found again.
            if not isinstance(client, str):
                raise TypeError(f"the client {client!r} must be named by a str.")
            if len(row) != width:
                raise ValueError(f"the row of {client!r} has {len(row)} bytes, not {width}.")
        with _explained(self.path):
            self._connection.execute("BEGIN")
            try:
                self._connection.executemany(
                    "INSERT INTO local_state (client, value) VALUES (?, ?) "
                    "ON CONFLICT (client) DO UPDATE SET value = excluded.value",
                    changes.items(),
                )
                self._connection.execute("DELETE FROM run")
                self._connection.execute("INSERT INTO run VALUES (?, ?)", saved)
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk has ended the transaction already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        self.saved_round = saved.round_number

    def close(self) -> None:
        """Lets other processes have the store."""
        self._connection.close()

    def pack(self, values: Mapping[str, np.ndarray]) -> list[bytes]:
        """Makes rows of values, local variable's name to (n, ...)."""
        columns = [
            np.ascontiguousarray(values[v.name], v.dtype.as_numpy_dtype) for v in self.variables
        ]
        return [b"".join(column[i].tobytes() for column in columns) for i in range(len(columns[0]))]

    def unpack(self, rows: Sequence[bytes | None]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Makes values of n clients' rows.

        Returns:
            Which clients have a row, bool (n,); and local variable's name to (n, ...), zeros where
            there is none.
        """
        known = np.array([row is not None for row in rows], bool)
        width = sum(self._sizes)
        joined = b"".join(bytes(width) if row is None else row for row in rows)
        table = np.frombuffer(bytearray(joined), np.uint8).reshape(len(rows), width)
        values, end = {}, 0
        for variable, size in zip(self.variables, self._sizes):
            part = np.ascontiguousarray(table[:, end : end + size])
            column, end = part.view(variable.dtype.as_numpy_dtype), end + size
            values[variable.name] = column.reshape([len(rows), *variable.shape])
        return known, values


def read_all(path: str | os.PathLike) -> tuple[list[str], dict[str, np.ndarray]]:
    """Returns the names of all clients of a store, (n,), and local variable's name to (n, ...).

    Args:
        path: The file; it is closed again.

    Raises:
        UserError: As of `LocalStateStore.reopen`.
    """
    with contextlib.closing(LocalStateStore.reopen(path)) as store:
        clients = store.clients()
        _, values = store.unpack(store.read(clients))
    return clients, values


def _describe(connection: sqlite3.Connection, described: str) -> list[str]:
    """Returns the format and the variables of a store, once an empty file is made one."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not tables:
        connection.execute("CREATE TABLE about (place INTEGER PRIMARY KEY, text TEXT)")
        # Rows stand in the order of their arrival, which fills pages; the index is of names alone.
        connection.execute(
            "CREATE TABLE local_state (client TEXT UNIQUE NOT NULL, value BLOB NOT NULL)"
        )
        connection.execute("CREATE TABLE run (round_number INTEGER NOT NULL, state BLOB NOT NULL)")
        connection.executemany("INSERT INTO about (text) VALUES (?)", [(_FORMAT,), (described,)])
    elif not _TABLES <= tables:
        return []
    return [text for (text,) in connection.execute("SELECT text FROM about ORDER BY place")]


def _check_same(path: str, found: Sequence[str], described: str) -> None:
    if not found or found[0] != _FORMAT:
        raise UserError(f"{path} is no local state store of this version; give another folder.")
    if found[1] != described:
        ours, theirs = (
            ", ".join(f"{name} {shape} {dtype}" for name, shape, dtype in json.loads(text))
            for text in (described, found[1])
        )
        raise UserError(
            f"{path} holds the local variables of another model: {theirs}; this model's are "
            f"{ours}. Give another folder."
        )


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turns SQLite's complaints into one line that names the file."""
    try:
        yield
    # A name may hold half a surrogate pair, which no file can.
    except (sqlite3.Error, UnicodeEncodeError) as error:
        known = (meaning for said, meaning in _MEANINGS.items() if said in str(error))
        raise UserError(f"local state store {path}: {next(known, error)}.") from error

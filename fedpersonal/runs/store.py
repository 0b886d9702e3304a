"""The store of clients' kept local variables, on disk.

In a deployment, each client holds its local variables. A simulation holds them all, in one SQLite
file with a row for each client that has ever taken part, and the state of the run after the same
round. Both change in one transaction: a process killed at any moment leaves local states and a
global state of the same round.

Each row has a digest, and the run's state has the number of rows. Both are compared when a store is
opened, which takes 3 s for a million clients. Damage can therefore not look like a client that has
kept nothing. A row is compared again when it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError, join_words
from fedpersonal.files import OWNER_ONLY, damaged
from fedpersonal.model.partition import VariableSpec

# The store's file name in the folder of a run.
LOCAL_STATE = "local_state.sqlite"

# Older versions of SQLite allow 999 parameters in a query.
_IDS_A_QUERY = 500
_FORMAT = "fedpersonal local state store 3"
# The number of bytes of rows that are unpacked together.
_BYTES_AT_ONCE = 2**20
# SQLite's limit on the bytes of a row.
_LARGEST = 10**9
# Rows are in the order of their arrival, which fills pages; the index holds only names.
_TABLES = {
    "about": "place INTEGER PRIMARY KEY, text TEXT",
    "local_state": "client TEXT UNIQUE NOT NULL, value BLOB NOT NULL, digest BLOB NOT NULL",
    "run": "round_number INTEGER NOT NULL, state BLOB NOT NULL, num_clients INTEGER NOT NULL, "
    "digest BLOB NOT NULL",
}
# Parts of SQLite's messages and what they mean here; most other messages report damage.
_MEANINGS = {
    "locked": "another process has it open; wait or end it",
    "full": "the disk is full, nothing of this round was written; free space and run it again",
    "disk I/O error": "the disk does not work or a limit is reached (df, ulimit -f); nothing of "
    "this round was written",
    "unable to open": "it cannot be opened; its folder must exist and be writable",
    "readonly": "it cannot be written to; check the permissions of the file and its folder",
    "too big": "the local variables of a client are too large for a row of SQLite",
}


class SavedRun(NamedTuple):
    """The state of a run.

    Attributes:
        round_number: The round after which it was committed.
        state: The committed bytes.
    """

    round_number: int
    state: bytes


class LocalStateStore:
    """A store of clients' rows of local variables, and of the run's state; open it with `open`.

    Attributes:
        path: The file.
        variables: The local variables; a row holds their values in this order.
        saved_round: The round of the last commit, or None.
    """

    def __init__(
        self, path: str, variables: Sequence[VariableSpec], connection: sqlite3.Connection
    ):
        """Use `open`."""
        self.path = path
        self.variables = tuple(variables)
        self._connection = connection
        self._sizes = [v.dtype.size * int(np.prod(v.shape)) for v in self.variables]
        # The digest depends on the variables, too: their rows cannot be confused with others.
        self._digest = hashlib.blake2b(_describe(variables).encode(), digest_size=8)
        self.saved_round = self._check_rows()

    @classmethod
    def open(cls, path: str | os.PathLike, variables: Sequence[VariableSpec]) -> LocalStateStore:
        """Opens a store, or makes an empty one, and locks it against other processes.

        Raises:
            UserError: If it cannot be read or written, another process has it open, it holds other
                variables, or it is damaged.
        """
        path = os.fspath(path)
        with _explained(path):
            # Readable by the owner only, as is SQLite's journal. If this fails, SQLite reports why.
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, OWNER_ONLY))
                os.chmod(path, OWNER_ONLY)
            # Transactions are explicit; SQLite serialises access by threads.
            connection = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
        try:
            with _explained(path):
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN EXCLUSIVE")
                _check_variables(path, _read_about(connection, variables), variables)
                # Fail now if the file cannot be written, not after rounds have been run.
                connection.execute("PRAGMA user_version = 1")
                connection.execute("COMMIT")
                return cls(path, variables, connection)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def reopen(cls, path: str | os.PathLike) -> LocalStateStore:
        """Opens an existing store, whatever its variables are.

        Args:
            path: The file.

        Raises:
            UserError: If there is no file, it is no store, or another process has it open.
        """
        path = os.fspath(path)
        if not os.path.isfile(path):
            raise UserError(f"{path}: no such file; no client of this run keeps local variables.")
        with (
            _explained(path),
            contextlib.closing(sqlite3.connect(path, timeout=0)) as connection,
        ):
            about = _texts(connection)
        return cls.open(path, _variables_of(path, about))

    def client_ids(self) -> list[str]:
        """Returns the sorted names of the clients that have kept variables."""
        with _explained(self.path):
            rows = self._connection.execute("SELECT client FROM local_state ORDER BY client")
            return [client for (client,) in rows]

    @property
    def num_clients(self) -> int:
        """Number of clients that have kept variables."""
        with _explained(self.path):
            return self._connection.execute("SELECT COUNT(*) FROM local_state").fetchone()[0]

    def read(self, client_ids: Iterable[str]) -> list[bytes | None]:
        """Returns each client's row, or None for a client that has kept nothing."""
        rows: dict[str, bytes] = {}
        ids = list(client_ids)
        with _explained(self.path):
            for start in range(0, len(ids), _IDS_A_QUERY):
                chunk = ids[start : start + _IDS_A_QUERY]
                marks = ", ".join("?" * len(chunk))
                matches = self._connection.execute(
                    f"SELECT client, value, digest FROM local_state WHERE client IN ({marks})",
                    chunk,
                )
                for client, row, digest in matches:
                    if self._digest_of(client, row) != digest:
                        raise damaged(self.path)
                    rows[client] = row
        return [rows.get(client) for client in ids]

    def saved(self) -> SavedRun | None:
        """Returns the state of the run, or None before its first commit."""
        with _explained(self.path):
            row = self._connection.execute("SELECT round_number, state FROM run").fetchone()
        if row is not None and not isinstance(row[1], bytes):
            raise damaged(self.path)
        return None if row is None else SavedRun(*row)

    def commit(self, changes: Mapping[str, bytes], saved: SavedRun) -> None:
        """Writes clients' rows and the run's state in one transaction.

        Raises:
            UserError: If that is impossible; the store is then unchanged.
        """
        width = sum(self._sizes)
        for client, row in changes.items():
            # SQLite would turn a number into a text, and a later look-up would not match it.
            if not isinstance(client, str):
                raise TypeError(f"the client {client!r} must be named by a str.")
            if len(row) != width:
                raise ValueError(f"the row of {client!r} has {len(row)} bytes, not {width}.")
        with _explained(self.path):
            rows = [(client, row, self._digest_of(client, row)) for client, row in changes.items()]
            self._connection.execute("BEGIN")
            try:
                self._connection.executemany(
                    "INSERT INTO local_state (client, value, digest) VALUES (?, ?, ?) "
                    "ON CONFLICT (client) DO UPDATE "
                    "SET value = excluded.value, digest = excluded.digest",
                    rows,
                )
                count = self.num_clients
                run_digest = self._digest_of(str(saved.round_number), b"%d" % count)
                self._connection.execute("DELETE FROM run")
                self._connection.execute(
                    "INSERT INTO run VALUES (?, ?, ?, ?)", (*saved, count, run_digest)
                )
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk has ended the transaction already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        self.saved_round = saved.round_number

    def close(self) -> None:
        """Releases the store for other processes."""
        self._connection.close()

    def pack(self, values: Mapping[str, np.ndarray]) -> list[bytes]:
        """Returns n rows of values, given as local variable's name to (n, ...)."""
        columns = [
            np.ascontiguousarray(values[v.name], v.dtype.as_numpy_dtype) for v in self.variables
        ]
        return [b"".join(column[i] for column in columns) for i in range(len(columns[0]))]

    def unpack(self, rows: Sequence[bytes | None]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the values in n clients' rows.

        Returns:
            Whether each client has a row, bool (n,); and local variable's name to (n, ...), zeros
            for clients without a row.
        """
        has_row = np.array([row is not None for row in rows], bool)
        width, ends = sum(self._sizes), np.cumsum(self._sizes).tolist()
        columns = [np.empty((len(rows), size), np.uint8) for size in self._sizes]
        # Chunks with many small rows save calls; those with few large rows fit in the cache.
        number, empty_row = max(1, _BYTES_AT_ONCE // max(1, width)), bytes(width)
        for start in range(0, len(rows), number):
            chunk = [empty_row if row is None else row for row in rows[start : start + number]]
            table = np.frombuffer(b"".join(chunk), np.uint8).reshape(len(chunk), width)
            for column, size, end in zip(columns, self._sizes, ends):
                column[start : start + number] = table[:, end - size : end]
        return has_row, {
            v.name: column.view(v.dtype.as_numpy_dtype).reshape([len(rows), *v.shape])
            for v, column in zip(self.variables, columns)
        }

    def _check_rows(self) -> int | None:
        """Compares all rows with the last commit, and returns its round; None before the first."""
        connection = self._connection
        connection.create_function("digest_of", 2, self._digest_of, deterministic=True)
        # The state may be large, and is not needed here.
        runs = connection.execute("SELECT round_number, num_clients, digest FROM run").fetchall()
        count, changed = connection.execute(
            "SELECT COUNT(*), SUM(digest IS NOT digest_of(client, value)) FROM local_state"
        ).fetchone()
        round_number, num_clients, run_digest = runs[0] if runs else (None, 0, None)
        is_whole = not changed and count == num_clients and len(runs) < 2
        if runs:
            is_whole &= type(round_number) is int
            is_whole &= run_digest == self._digest_of(str(round_number), str(num_clients).encode())
        # An index that does not match its rows would hide clients.
        if not is_whole or connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise damaged(self.path)
        return round_number

    def _digest_of(self, client: object, row: object) -> bytes:
        """Returns the digest of a client's row; empty for values of other types."""
        if not isinstance(client, str) or not isinstance(row, bytes):
            return b""
        hasher = self._digest.copy()
        hasher.update(client.encode() + b"\0" + row)
        return hasher.digest()


def read_all(path: str | os.PathLike) -> tuple[list[str], dict[str, np.ndarray]]:
    """Returns the names of all clients of a store, (n,), and local variable's name to (n, ...).

    Args:
        path: The file; it is closed again.

    Raises:
        UserError: If there is no file, it is no store, or another process has it open.
    """
    with contextlib.closing(LocalStateStore.reopen(path)) as store:
        clients = store.client_ids()
        _, values = store.unpack(store.read(clients))
    return clients, values


def _describe(variables: Sequence[VariableSpec]) -> str:
    """Returns the description of local variables in a store, as JSON."""
    return json.dumps([[v.name, list(v.shape), v.dtype.name] for v in variables])


def _texts(connection: sqlite3.Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT text FROM about ORDER BY place")]


def _read_about(connection: sqlite3.Connection, variables: Sequence[VariableSpec]) -> list[str]:
    """Returns the format and the variables of a store, after making its tables if needed."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not tables:
        for name, columns in _TABLES.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
        texts = [(_FORMAT,), (_describe(variables),)]
        connection.executemany("INSERT INTO about (text) VALUES (?)", texts)
    return _texts(connection) if not tables or tables >= {*_TABLES} else []


def _variables_of(path: str, about: Sequence[str]) -> list[VariableSpec]:
    """Returns the variables that the description in a store names."""

    def variable(name: str, shape: Sequence[int], dtype: str) -> VariableSpec:
        tf_dtype, sizes = tf.as_dtype(dtype), tuple(int(size) for size in shape)
        is_number = np.dtype(tf_dtype.as_numpy_dtype).kind != "O"
        if not is_number or min(sizes, default=0) < 0 or math.prod(sizes) > _LARGEST:
            raise ValueError(f"no variable: {name} {shape} {dtype}")
        return VariableSpec(name, name.split("/")[0], sizes, tf_dtype, True, tf.zeros)

    try:
        _, described = about
        return [variable(*parts) for parts in json.loads(described)]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise damaged(path) from error


def _check_variables(path: str, about: Sequence[str], variables: Sequence[VariableSpec]) -> None:
    """Raises a UserError unless a store is of this version and holds these variables."""
    kind = about[0] if about and isinstance(about[0], str) else ""
    if kind != _FORMAT and kind.startswith(_FORMAT[:-1]):
        raise UserError(f"{path} was written by another version; start a new folder.")
    if kind != _FORMAT:
        raise damaged(path)
    if about[1:] != [_describe(variables)]:
        ours, theirs = (
            join_words([f"{v.name} {[*v.shape]} {v.dtype.name}" for v in several])
            for several in (variables, _variables_of(path, about))
        )
        raise UserError(
            f"{path} holds the local variables of another model: {theirs}; this model's are "
            f"{ours}. Give another folder."
        )


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turns SQLite's errors into one line that names the file."""
    try:
        yield
    # A name may hold half a surrogate pair, which no file can.
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        for text, meaning in _MEANINGS.items():
            if text in str(error):
                raise UserError(f"local state store {path}: {meaning}.") from error
        if isinstance(error, sqlite3.ProgrammingError) or not isinstance(
            error, sqlite3.DatabaseError
        ):
            raise UserError(f"local state store {path}: {error}.") from error
        raise damaged(path) from error

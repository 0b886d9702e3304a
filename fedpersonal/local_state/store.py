"""What clients keep from round to round, on disk.

In a deployment each client holds its own local variables; a simulation holds them all, here: one
SQLite file with a row for each client that has ever taken part, and beside these rows the state of
the run that they belong to. Both change in one transaction, so that a process killed at any moment
leaves the local states of exactly the round whose global state is there.

Each row has a checksum, and the run's state the number of rows and the sum of these checksums. All
are compared when a store is opened, which takes 3 s for a million clients, so that no damage passes
for a client that has kept nothing; a row is compared again when it is read.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedpersonal.atomic_files import OWNER_ONLY
from fedpersonal.errors import UserError
from fedpersonal.local_state import store_file
from fedpersonal.model.partition import VariableSpec

# Its name in the folder of a run.
LOCAL_STATE = "local_state.sqlite"

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
        self._sizes = [v.dtype.size * int(np.prod(v.shape)) for v in self.variables]
        self._described = store_file.describe_variables(variables)
        width = sum(self._sizes)
        self.saved_round = store_file.check_rows(path, connection, width, self._described)

    @classmethod
    def open(cls, path: str | os.PathLike, variables: Sequence[VariableSpec]) -> LocalStateStore:
        """Opens a store, or makes an empty one, and keeps other processes out of it.

        Raises:
            UserError: If it cannot be read or written, another process has it open, or it holds
                other variables than these.
        """
        path = os.fspath(path)
        described = store_file.describe_variables(variables)
        with store_file.explained(path):
            # For its owner alone, and so is SQLite's journal. Where that fails, SQLite says why.
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, OWNER_ONLY))
                os.chmod(path, OWNER_ONLY)
            # Transactions are begun and ended by hand; SQLite itself lets one thread in at a time.
            connection = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
        try:
            with store_file.explained(path):
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN EXCLUSIVE")
                store_file.check_same(path, store_file.describe(connection, described), described)
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
        with (
            store_file.explained(path),
            contextlib.closing(sqlite3.connect(path, timeout=0)) as connection,
        ):
            about = [
                text for (text,) in connection.execute("SELECT text FROM about ORDER BY place")
            ]
        return cls.open(path, store_file.variables_of(path, about))

    def clients(self) -> list[str]:
        """Returns the names of the clients that have kept something, in order."""
        with store_file.explained(self.path):
            rows = self._connection.execute("SELECT client FROM local_state ORDER BY client")
            return [client for (client,) in rows]

    @property
    def num_clients(self) -> int:
        """How many clients have kept something."""
        with store_file.explained(self.path):
            return self._connection.execute("SELECT COUNT(*) FROM local_state").fetchone()[0]

    def client_ids(self) -> list[str]:
        """Returns the clients that have kept something."""
        with store_file.explained(self.path):
            return [name for (name,) in self._connection.execute("SELECT client FROM local_state")]

    def read(self, client_ids: Iterable[str]) -> list[bytes | None]:
        """Returns each client's row, or None where a client has kept nothing."""
        rows: dict[str, bytes] = {}
        ids = list(client_ids)
        with store_file.explained(self.path):
            for start in range(0, len(ids), _IDS_A_QUERY):
                some = ids[start : start + _IDS_A_QUERY]
                marks = ", ".join("?" * len(some))
                found = self._connection.execute(
                    f"SELECT client, value, checksum FROM local_state WHERE client IN ({marks})",
                    some,
                )
                for client, row, checksum in found:
                    if store_file.checksum_of(client, row) != checksum:
                        raise store_file.damage(self.path, f"the row of {client!r} was changed")
                    rows[client] = row
        return [rows.get(client) for client in ids]

    def saved(self) -> SavedRun | None:
        """Returns the state of the run, or None before its first commit."""
        with store_file.explained(self.path):
            row = self._connection.execute("SELECT round_number, state FROM run").fetchone()
        if row is not None and not isinstance(row[1], bytes):
            raise store_file.damage(self.path, "the run's state was changed")
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
        with store_file.explained(self.path):
            rows = [
                (client, row, store_file.checksum_of(client, row))
                for client, row in changes.items()
            ]
            self._connection.execute("BEGIN")
            try:
                # What was committed is read again: Ctrl-C may have come right after a commit.
                known = store_file.read_sums(self._connection, self._described)
                count, checksum = self._sums(list(changes))
                self._connection.executemany(
                    "INSERT INTO local_state (client, value, checksum) VALUES (?, ?, ?) "
                    "ON CONFLICT (client) DO UPDATE "
                    "SET value = excluded.value, checksum = excluded.checksum",
                    rows,
                )
                count = known.num_clients - count + len(rows)
                checksum = known.checksum - checksum + sum(row[2] for row in rows)
                of_run = store_file.checksum_of_run(saved.round_number, self._described)
                self._connection.execute("DELETE FROM run")
                self._connection.execute(
                    "INSERT INTO run VALUES (?, ?, ?, ?)", (*saved, count, of_run + checksum)
                )
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk has ended the transaction already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        self.saved_round = saved.round_number

    def _sums(self, client_ids: Sequence[str]) -> tuple[int, int]:
        """Returns how many of some clients have a row, and the sum of these rows' checksums."""
        count = checksum = 0
        for start in range(0, len(client_ids), _IDS_A_QUERY):
            some = client_ids[start : start + _IDS_A_QUERY]
            more = self._connection.execute(
                "SELECT COUNT(*), TOTAL(checksum) FROM local_state "
                f"WHERE client IN ({', '.join('?' * len(some))})",
                some,
            ).fetchone()
            count, checksum = count + more[0], checksum + int(more[1])
        return count, checksum

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
        table = np.frombuffer(joined, np.uint8).reshape(len(rows), width)
        values, end = {}, 0
        for variable, size in zip(self.variables, self._sizes):
            part = np.array(table[:, end : end + size])
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

"""A store of local state after damage: it gives what was committed, or says one line.

So many cases a test are tried as the environment says: FEDPERSONAL_FUZZ_CASES=20000.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3

import numpy as np
import pytest
import tensorflow as tf
from damage import BYTES, ROWS, change_bytes, change_rows, other_json, outcome
from hypothesis import given
from hypothesis import strategies as st

from fedpersonal.local_state import store_file
from fedpersonal.local_state.rounds import KeptState
from fedpersonal.local_state.store import LocalStateStore, read_all
from fedpersonal.model.partition import VariableSpec
from fedpersonal.simulation.checkpoints import StoreCheckpoints

VARIABLES = [
    VariableSpec("user/embeddings", "user", (1, 2), tf.float32, True, None),
    VariableSpec("count", "count", (), tf.int64, True, None),
]
NAMES = ["a", "b", "\u00e9", ""]
NOTHING = ([None] * 5, [], 0, None)


class Written:
    """A store after two commits, and what a crash in a third one leaves beside it."""

    def __init__(self, path):
        self.path, self.journal = path, path.with_name(path.name + "-journal")
        store = LocalStateStore.open(path, VARIABLES)
        for number in (1, 2):
            values = {
                "user/embeddings": np.full([4, 1, 2], number, np.float32),
                "count": np.arange(4) * number,
            }
            rows = store.pack(values)
            state = {"state": KeptState(number, np.float32(number), dict(zip(NAMES, rows)))}
            StoreCheckpoints(store).save(number, state)
        store.close()
        self.before = path.read_bytes()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("PRAGMA cache_spill = ON")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("UPDATE local_state SET value = zeroblob(16)")
            connection.execute("UPDATE run SET state = zeroblob(50000)")
            connection.execute("DELETE FROM local_state WHERE client = 'a'")
            self.during, self.hot = path.read_bytes(), self.journal.read_bytes()
            connection.execute("ROLLBACK")
        self.restore()
        self.values = self.read()

    def restore(self, content=None, hot=None):
        for path in self.path.parent.iterdir():
            path.unlink()
        self.path.write_bytes(self.before if content is None else content)
        if hot is not None:
            self.journal.write_bytes(hot)

    def read(self):
        with contextlib.closing(LocalStateStore.open(self.path, VARIABLES)) as store:
            rows = store.read([*NAMES, "nobody"])
            saved = StoreCheckpoints(store).restore(like=KeptState(0, np.float32(0), {}))
            return rows, sorted(store.client_ids()), store.num_clients, saved

    def try_all(self):
        found = outcome(self.read, self.path)
        # A file without tables is that of a new store; runs that have rounds refuse it.
        assert found in (None, self.values, NOTHING)
        clients = outcome(lambda: read_all(self.path), self.path)
        assert clients is None or clients[0] in (sorted(NAMES), [])


@pytest.fixture(name="written", scope="module")
def _written(tmp_path_factory):
    return Written(tmp_path_factory.mktemp("store") / "local_state.sqlite")


@given(BYTES)
def test_bytes(written, changes):
    written.restore(change_bytes(written.before, changes))
    written.try_all()


@given(BYTES)
def test_bytes_of_a_journal_that_a_crash_has_left(written, changes):
    written.restore(written.during, change_bytes(written.hot, changes))
    written.try_all()


def test_a_journal_that_a_crash_has_left_is_rolled_back(written):
    written.restore(written.during, written.hot)
    assert written.during != written.before and written.read() == written.values


@given(st.lists(ROWS, min_size=1, max_size=2))
def test_rows(written, changes):
    written.restore()
    for change in changes:
        change_rows(written.path, change)
    written.try_all()


@given(st.data(), st.booleans())
def test_descriptions_of_variables(written, data, is_empty):
    """They fit the rows, as far as checksums say; a store without rows has none."""
    described = store_file.describe_variables(VARIABLES)
    other = data.draw(other_json(json.loads(described)))
    text = json.dumps(other)
    written.restore()
    with contextlib.closing(sqlite3.connect(written.path)) as connection, connection:
        connection.execute("UPDATE about SET text = ? WHERE place = 2", [text])
        if is_empty:
            connection.execute("DELETE FROM run")
            connection.execute("DELETE FROM local_state")
        else:
            rounds, sums = (
                store_file.checksum_of_run(2, text),
                store_file.checksum_of_run(2, described),
            )
            connection.execute("UPDATE run SET checksum = checksum + ?", [rounds - sums])
    clients = outcome(lambda: read_all(written.path), written.path)
    if clients is not None:
        names, values = clients
        assert all(len(column) == len(names) for column in values.values())
    found = outcome(written.read, written.path)
    assert found is None or is_empty or found == written.values

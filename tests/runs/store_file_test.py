"""What is said of the file of a store: another's, damaged, changed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.partition import VariableSpec
from fedpersonal.runs.store import LocalStateStore, SavedRun


def variable(name, shape, dtype=tf.float32):
    return VariableSpec(name, name.split("/")[0], tuple(shape), dtype, True, None)


USER = [variable("user/embeddings", [1, 4])]


def opened(path):
    return contextlib.closing(LocalStateStore.open(path, USER))


def row(number):
    """A row of USER."""
    return np.full(4, number, np.float32).tobytes()


@pytest.mark.parametrize(
    "others",
    [
        [variable("user/embeddings", [1, 8])],
        [variable("user/embeddings", [1, 4], tf.float64)],
        [variable("bias", [1, 4])],
        [*USER, variable("bias", [1])],
        [],
    ],
)
def test_a_store_of_another_model_is_refused(path, store, others):
    store.close()
    with pytest.raises(
        UserError,
        match=r"local_state.sqlite holds the local variables of another model: "
        r"user/embeddings \[1, 4\] float32; this model's are ",
    ) as error:
        LocalStateStore.open(path, others)
    assert "\n" not in str(error.value)
    for v in others:
        assert f"{v.name} {list(v.shape)} {v.dtype.name}" in str(error.value)
    with opened(path) as again:
        assert again.saved() == SavedRun(1, b"one")


def foreign(*columns):
    """Returns the content of another program's SQLite file, with a table of the store's name."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "other")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"CREATE TABLE about ({', '.join(columns)})")
            connection.execute("INSERT INTO about VALUES (1, 'mine')")
            connection.commit()
        return path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"xy",
        b"client,value\n" * 1000,
        b"SQLite format 3\0" + b"\xff" * 5000,
        foreign("price INTEGER", "title TEXT"),
        foreign("place INTEGER PRIMARY KEY", "text TEXT"),
    ],
    ids=["two bytes", "text", "a header only", "other columns", "the same columns"],
)
def test_what_is_no_store_is_refused_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged or was changed: restore it") as error:
        LocalStateStore.open(path, USER)
    assert "\n" not in str(error.value) and os.fspath(path) in str(error.value)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("place", ["missing/local_state.sqlite", ""])
def test_a_place_that_cannot_be_opened_is_one_line(tmp_path, place):
    with pytest.raises(
        UserError, match="local state store .*its folder must exist and be writable"
    ):
        LocalStateStore.open(tmp_path / place, USER)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM local_state WHERE client = 'b'",
        "DELETE FROM local_state",
        "UPDATE local_state SET value = zeroblob(16) WHERE client = 'b'",
        "UPDATE local_state SET value = 'text' WHERE client = 'a'",
        "UPDATE local_state SET client = 'c' WHERE client = 'b'",
        "UPDATE local_state SET digest = X'00' WHERE client = 'b'",
        "UPDATE run SET round_number = 2",
        "UPDATE run SET num_clients = 3",
        "DELETE FROM run",
        "INSERT INTO run SELECT * FROM run",
        "UPDATE about SET text = replace(text, 'float32', 'int32')",
    ],
)
def test_rows_that_were_changed_are_refused(path, store, change):
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    with pytest.raises(UserError) as caught:
        LocalStateStore.reopen(path)
    assert str(caught.value) == (
        f"{path} is damaged or was changed: restore it, or start a new folder."
    )


def test_a_store_of_version_0_2_is_refused(path, store):
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE about SET text = replace(text, 'store 3', 'store 2')")
    with pytest.raises(UserError, match="sqlite was written by another version; start a new fold"):
        LocalStateStore.open(path, USER)


def test_an_index_that_does_not_fit_its_rows_is_refused(path, store):
    """It would hide a client, who would begin anew."""
    store.commit({"somebody": row(5)}, SavedRun(2, b"two"))
    store.close()
    whole = path.read_bytes()
    assert whole.count(b"somebody") == 2  # In the row, and in the index.
    for place in (whole.find(b"somebody"), whole.rfind(b"somebody")):
        path.write_bytes(whole[:place] + b"nobodyme" + whole[place + 8 :])
        with pytest.raises(UserError, match="is damaged or was changed"):
            LocalStateStore.open(path, USER)

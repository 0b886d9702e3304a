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
from fedpersonal.local_state.store import LocalStateStore, SavedRun, read_all
from fedpersonal.model.partition import VariableSpec


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
    with pytest.raises(UserError, match="local state store.*give another folder") as error:
        LocalStateStore.open(path, USER)
    assert "\n" not in str(error.value) and os.fspath(path) in str(error.value)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


def test_a_damaged_store_is_one_line(path, store):
    store.commit({f"client{i}": row(i) for i in range(1000)}, SavedRun(2, b"two"))
    store.close()
    whole = path.read_bytes()
    for length in (len(whole) // 2, 5000, 4096, 100):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="no local state store, or a damaged one"):
            with opened(path) as damaged:
                damaged.read([f"client{i}" for i in range(1000)])
                damaged.saved()
    path.write_bytes(whole)
    with opened(path) as again:
        assert again.num_clients == 1002


@pytest.mark.parametrize("place", ["missing/local_state.sqlite", ""])
def test_a_place_that_cannot_be_opened_is_one_line(tmp_path, place):
    with pytest.raises(
        UserError, match="local state store .*its folder must exist and be writable"
    ):
        LocalStateStore.open(tmp_path / place, USER)
    assert os.listdir(tmp_path) == []


NAN = "UPDATE local_state SET value = X'0000C07F0000C07F0000C07F0000C07F' WHERE client = 'b'"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM local_state WHERE client = 'b'", "it has the rows of 1 clients, not of 2"),
        ("DELETE FROM local_state", "it has the rows of 0 clients, not of 2"),
        (NAN, "1 of its 2 rows were changed"),
        ("UPDATE local_state SET value = zeroblob(16)", "2 of its 2 rows were changed"),
        (
            "UPDATE local_state SET value = 'text' WHERE client = 'a'",
            "1 of its 2 rows were changed",
        ),
        ("UPDATE local_state SET client = 'c' WHERE client = 'b'", "1 of its 2 rows were changed"),
        ("UPDATE local_state SET checksum = 3 WHERE client = 'b'", "1 of its 2 rows were changed"),
        ("UPDATE run SET round_number = 2", "what it says was changed"),
        ("UPDATE run SET round_number = 'x'", "what it says of the run was changed"),
        ("UPDATE run SET num_clients = 3", "it has the rows of 2 clients, not of 3"),
        ("UPDATE run SET checksum = checksum + 1", "what it says was changed"),
        ("DELETE FROM run", "it has the rows of 2 clients, not of 0"),
        ("INSERT INTO run SELECT * FROM run", "what it says of the run was changed"),
    ],
)
def test_rows_that_were_changed_are_refused(path, store, change, message):
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    with pytest.raises(UserError) as caught:
        LocalStateStore.open(path, USER)
    assert str(caught.value) == (
        f"local state store {path} is damaged: {message} since the last commit. Put back a copy of "
        "it or give another folder."
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "{}",
        "[[1, 2, 3]]",
        '[["a", ["x"], "float32"]]',
        "[" * 200_000,
        None,
        '[["a", [-1], "float32"]]',
        '[["a", [99999, 99999, 99999], "float32"]]',
        '[["a", [1], "string"]]',
        '[["\\ud800\\n", [1], "float32"]]',
        '[["' + "x" * 9000 + '", [1], "int32"]]',
    ],
)
def test_a_description_that_is_none_is_refused(path, store, text):
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE about SET text = ? WHERE place = 2", [text])
    for use in (lambda: LocalStateStore.open(path, USER), lambda: LocalStateStore.reopen(path)):
        with pytest.raises(UserError) as caught:
            use().close()
        said = str(caught.value)
        assert os.fspath(path) in said and said.isprintable() and len(said) < 2000


@pytest.mark.parametrize("shape", ["[-1, 4]", "[99999, 99999, 99999]"])
def test_a_description_without_rows_is_refused_as_well(path, store, shape):
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE about SET text = replace(text, '[1, 4]', ?)", [shape])
        connection.execute("DELETE FROM run")
        connection.execute("DELETE FROM local_state")
    with pytest.raises(UserError, match="no local state store of this version, or a damaged one"):
        read_all(path)


def test_another_dtype_of_the_same_size_is_refused(path, store):
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE about SET text = replace(text, 'float32', 'int32')")
    with pytest.raises(UserError, match="is damaged: what it says was changed"):
        LocalStateStore.reopen(path)

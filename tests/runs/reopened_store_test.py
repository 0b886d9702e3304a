"""A store that is opened again without its model."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.partition import VariableSpec
from fedpersonal.runs.store import LocalStateStore, SavedRun, read_all


def test_everything_that_clients_keep_is_read(tmp_path):
    path = tmp_path / "store.sqlite"
    specs = [
        VariableSpec("user/embeddings", "user", (1, 2), tf.float32, True, tf.zeros),
        VariableSpec("count", "count", (), tf.int32, True, tf.zeros),
    ]
    values = {
        "user/embeddings": np.arange(6, dtype=np.float32).reshape(3, 1, 2),
        "count": np.array([7, 8, 9], np.int32),
    }
    with contextlib.closing(LocalStateStore.open(path, specs)) as store:
        rows = store.pack(values)
        store.commit(dict(zip(["zoe", "ann", "bob"], rows)), SavedRun(3, b"state"))
    clients, found = read_all(path)
    assert clients == ["ann", "bob", "zoe"]
    for name, value in values.items():
        np.testing.assert_array_equal(found[name], value[[1, 2, 0]])
        assert found[name].dtype == value.dtype


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file; no client of this run keeps"):
        read_all(tmp_path / "absent.sqlite")
    assert not list(tmp_path.iterdir())
    (tmp_path / "other.sqlite").write_bytes(b"no store" * 1000)
    with pytest.raises(UserError, match="other.sqlite is damaged or was changed"):
        read_all(tmp_path / "other.sqlite")

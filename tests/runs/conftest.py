"""A store of two clients after one commit."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.model.partition import VariableSpec
from fedpersonal.runs.store import LocalStateStore, SavedRun


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "local_state.sqlite"


@pytest.fixture(name="store")
def _store(path):
    user = [VariableSpec("user/embeddings", "user", (1, 4), tf.float32, True, None)]
    rows = {name: np.full(4, number, np.float32).tobytes() for number, name in enumerate("ab", 1)}
    with contextlib.closing(LocalStateStore.open(path, user)) as store:
        store.commit(rows, SavedRun(1, b"one"))
        yield store

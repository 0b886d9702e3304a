"""How the examples of many clients are cut into chunks."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.client import pooled_batches
from fedpersonal.client.pooled_batches import chunk_end, sum_over_chunks

LENGTHS = np.array([0, 4, 1, 7, 3, 3, 2], np.int32)
LONGEST_FIRST = np.array([3, 1, 4, 5, 6, 2, 0], np.int32)


@pytest.mark.parametrize(
    ("places", "chunks"),
    [
        (None, [[7, 4, 3], [3, 2, 1], [0]]),
        # As many as have 8 places if they are as long as the first, and 3 at the most.
        (8, [[7], [4, 3], [3, 2], [1, 0]]),
        (1, [[7], [4], [3], [3], [2], [1], [0]]),
        (100, [[7, 4, 3], [3, 2, 1], [0]]),
    ],
)
def test_chunks_are_as_large_as_asked(monkeypatch, places, chunks):
    monkeypatch.setattr(pooled_batches, "CHUNK", 3)
    model = types.SimpleNamespace(chunk_places=places)
    pool = types.SimpleNamespace(lengths=tf.constant(LENGTHS))
    rows = tf.constant(LONGEST_FIRST)
    found, start = [], 0
    while start < len(LENGTHS):
        end = int(chunk_end(model, pool, rows, tf.constant(start)))
        found.append(LENGTHS[LONGEST_FIRST[start:end]].tolist())
        start = end
    assert found == chunks


@pytest.mark.parametrize("places", [None, 1, 8])
def test_every_row_is_in_one_chunk(monkeypatch, places):
    monkeypatch.setattr(pooled_batches, "CHUNK", 3)
    model = types.SimpleNamespace(chunk_places=places)
    pool = types.SimpleNamespace(lengths=tf.constant(LENGTHS))

    @tf.function(autograph=False)
    def count():
        def seen(rows):
            return tf.math.bincount(rows, minlength=7, dtype=tf.float32), 1

        return sum_over_chunks(model, pool, tf.constant(LONGEST_FIRST), seen, (tf.zeros([7]), 0))

    times, num_chunks = count()
    assert times.numpy().tolist() == [1.0] * 7
    assert num_chunks == {None: 3, 1: 7, 8: 4}[places]

"""The steps of a phase, written out for a stack of three clients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.client.batches import schedule_phase
from fedpersonal.client.values import Examples
from fedpersonal.methods.algorithm import GradientPhase

# Batches of at most three examples: 3 3 3 2; 3 1; none; 2.
MASK = np.array(
    [
        [[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0]],
        [[1, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
    ],
    np.float32,
)


def schedule(**options):
    examples = Examples({}, tf.zeros([]), tf.constant(MASK), {}, {})
    phase = GradientPhase("global", optimizer=None, **options)
    result = schedule_phase(phase, examples)
    assert result.batches.dtype == tf.int32
    assert result.active.dtype == result.num_examples.dtype == tf.float32
    assert result.batches.shape == result.active.shape
    assert result.num_steps.numpy() == result.active.numpy().sum(0).max()
    steps = [
        batches[active > 0].tolist()
        for batches, active in zip(result.batches.numpy().T, result.active.numpy().T)
    ]
    # Clients are active first and idle then, and idle ones point at a batch that exists.
    for active in result.active.numpy().T:
        assert (np.diff(active) <= 0).all() and set(active) <= {0, 1}
    assert not result.batches.numpy()[result.active.numpy() == 0].any()
    return steps, result.num_examples.numpy().tolist()


@pytest.mark.parametrize(
    ("options", "steps", "num_examples"),
    [
        ({"data": "all"}, [[0, 1, 2, 3], [0, 1], [], [0]], [11, 4, 0, 2]),
        ({"data": "support"}, [[0, 2], [0], [], [0]], [6, 3, 0, 2]),
        ({"data": "query"}, [[1, 3], [1], [], []], [5, 1, 0, 0]),
        ({"data": "first_half"}, [[0, 1], [0], [], [0]], [6, 3, 0, 2]),
        ({"data": "second_half"}, [[2, 3], [1], [], []], [5, 1, 0, 0]),
        ({"data": "query", "epochs": 2}, [[1, 3, 1, 3], [1, 1], [], []], [10, 2, 0, 0]),
        (
            {"data": "second_half", "epochs": 2, "max_steps": 3},
            [[2, 3, 2], [1, 1], [], []],
            [8, 2, 0, 0],
        ),
        (
            {"data": "all", "epochs": 2, "max_steps": 5},
            [[0, 1, 2, 3, 0], [0, 1, 0, 1], [], [0, 0]],
            [14, 8, 0, 4],
        ),
        ({"data": "all", "max_steps": 9}, [[0, 1, 2, 3], [0, 1], [], [0]], [11, 4, 0, 2]),
        (
            {"data": "all", "epochs": 3, "passes": tf.constant(1)},
            [[0, 1, 2, 3], [0, 1], [], [0]],
            [11, 4, 0, 2],
        ),
        ({"data": "query 1/4"}, [[1, 2, 3], [1], [], []], [8, 1, 0, 0]),
        ({"data": "all", "epochs": 0}, [[], [], [], []], [0, 0, 0, 0]),
        ({"data": "all", "max_steps": 0}, [[], [], [], []], [0, 0, 0, 0]),
    ],
)
def test_steps_are_written_out(options, steps, num_examples):
    assert schedule(**options) == (steps, num_examples)

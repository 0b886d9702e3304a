"""What a round takes: its work against the steps that clients take, and the clock's law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.client.batches import schedule_phase
from fedpersonal.client.values import Examples
from fedpersonal.data.splits import PARTS
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.methods.algorithm import GradientPhase, RidgePhase
from fedpersonal.training.participation import ClientClock, count_work

COUNTS = np.array([11, 4, 0, 2, 3, 12, 7])
BATCH_SIZE = 3


@pytest.mark.parametrize("part", PARTS)
def test_work_is_that_of_the_steps_taken(part):
    mask = np.arange(12) < COUNTS[:, np.newaxis]
    mask = tf.constant(mask.reshape(-1, 4, 3).astype(np.float32))
    examples = Examples({}, tf.zeros([]), mask, {}, {})
    for epochs, max_steps in itertools.product((0, 1, 3), (None, 0, 1, 2, 4, 5)):
        phase = GradientPhase("global", part, None, epochs=epochs, max_steps=max_steps)
        expected = schedule_phase(phase, examples).num_examples.numpy()
        found = count_work([phase], COUNTS, batch_size=BATCH_SIZE)
        np.testing.assert_array_equal(found, expected, err_msg=f"{epochs} {max_steps}")
        ridge = count_work([RidgePhase("support", l2=1.0), phase], COUNTS, batch_size=BATCH_SIZE)
        np.testing.assert_array_equal(ridge - expected, [6, 3, 0, 2, 3, 6, 4])


def test_seconds_add_up():
    clock = ClientClock(
        overhead_seconds=2, example_seconds=0.5, speed_spread=1, jitter=0.2, bytes_per_second=100
    )
    found = clock.seconds(np.array([4, 0]), np.array([3.0, 9.0]), np.array([-1.0, 1.0]), 50)
    np.testing.assert_allclose(found, [2 + 4 * 0.5 * 3 * np.exp(-0.2) + 0.5, 2.5])
    assert ClientClock().seconds(np.zeros(1), np.ones(1), np.zeros(1), 10**9) == [1.0]


def test_slowness_is_log_normal_and_seeded():
    logs = np.log(ClientClock(speed_spread=0.7).slowness(40_000, 3))
    assert abs(logs.mean()) < 5 * 0.7 / 200 and abs(logs.std() - 0.7) < 5 * 0.7 / 280
    expected = generator(Purpose.SPEEDS, 3).standard_normal(40_000)
    np.testing.assert_allclose(logs, 0.7 * expected)


@pytest.mark.parametrize(
    "option",
    [{"jitter": -1}, {"bytes_per_second": 0}, {"example_seconds": float("nan")}],
    ids=str,
)
def test_names_the_option_out_of_range(option):
    with pytest.raises(UserError, match=f"ClientClock: {[*option][0]}="):
        ClientClock(**option)

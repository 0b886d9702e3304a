"""Our LSTM against Keras' own: outputs, gradients, masks, initial weights."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.models.next_word import LSTM, BidirectionalEnds

BATCH, TIME, SIZE, UNITS = 4, 6, 3, 5
MASKS = {
    "none": None,
    "all": np.ones([BATCH, TIME], bool),
    # Among them one without padding and one that is nothing else.
    "trailing": np.arange(TIME) < np.array([[6], [2], [0], [5]]),
    "arbitrary": np.random.default_rng(4).random([BATCH, TIME]) < 0.5,
}


def draw_weights(random):
    return [
        random.normal(size=shape).astype(np.float32)
        for shape in ([SIZE, 4 * UNITS], [UNITS, 4 * UNITS], [4 * UNITS])
    ]


def outputs_and_gradients(layer, inputs, weights, mask, upstream, *, training=True):
    """Returns the outputs, and the gradients of inputs, kernel, recurrent kernel and bias."""
    layer.build((None, None, SIZE))
    layer.set_weights(weights)
    inputs = tf.constant(inputs)
    mask = None if mask is None else tf.constant(mask)

    @tf.function(autograph=False)
    def run():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, mask=mask, training=training)
            total = tf.reduce_sum(outputs * upstream)
        gradients = tape.gradient(total, [inputs, *layer.trainable_variables])
        return [outputs, *map(tf.convert_to_tensor, gradients)]

    return [tensor.numpy() for tensor in run()]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_outputs_and_gradients_are_keras_own(mask, training):
    random = np.random.default_rng(0)
    inputs = random.normal(size=[BATCH, TIME, SIZE]).astype(np.float32)
    upstream = random.normal(size=[BATCH, TIME, UNITS]).astype(np.float32)
    weights = draw_weights(random)
    ours, keras = (
        outputs_and_gradients(layer, inputs, weights, MASKS[mask], upstream, training=training)
        for layer in (LSTM(UNITS), tf.keras.layers.LSTM(UNITS, return_sequences=True))
    )
    assert len(ours) == 5
    for our, their in zip(ours, keras):
        np.testing.assert_allclose(our, their, rtol=1e-4, atol=1e-5)
        assert np.abs(their).max() > 0.1


def test_gradients_are_those_of_finite_differences():
    """In case Keras' kernels and ours were wrong alike: along a random direction."""
    random = np.random.default_rng(1)
    inputs = random.normal(size=[BATCH, TIME, SIZE]).astype(np.float32)
    upstream = random.normal(size=[BATCH, TIME, UNITS]).astype(np.float32)
    point = [inputs, *draw_weights(random)]
    mask = MASKS["arbitrary"]
    along = [random.normal(size=part.shape).astype(np.float32) for part in point]
    layer = LSTM(UNITS)

    def total(step):
        moved = [p + step * d for p, d in zip(point, along)]
        outputs, *gradients = outputs_and_gradients(layer, moved[0], moved[1:], mask, upstream)
        return (outputs.astype(np.float64) * upstream).sum(), gradients

    slope = sum((g * d).sum() for g, d in zip(total(0.0)[1], along))
    difference = (total(1e-3)[0] - total(-1e-3)[0]) / 2e-3
    assert slope == pytest.approx(difference, rel=1e-2)
    assert abs(slope) > 0.5


def test_where_the_mask_is_false_the_last_output_is_repeated():
    random = np.random.default_rng(2)
    layer = LSTM(UNITS)
    inputs = random.normal(size=[1, 4, SIZE]).astype(np.float32)
    outputs = layer(tf.constant(inputs), mask=tf.constant([[True, False, True, False]])).numpy()[0]
    without = layer(tf.constant(inputs[:, ::2])).numpy()[0]
    np.testing.assert_allclose(outputs, np.repeat(without, 2, axis=0), rtol=1e-6)
    assert np.abs(without[1] - without[0]).max() > 1e-3


def test_inputs_and_time_of_any_length():
    layer = LSTM(UNITS)
    longest = tf.random.stateless_normal([2, 7, SIZE], [0, 1])
    outputs = layer(longest)
    for length in (1, 3):
        np.testing.assert_allclose(layer(longest[:, :length]), outputs[:, :length], rtol=1e-5)
    assert layer(longest[:0]).shape == [0, 7, UNITS]


def test_weights_start_as_keras_own():
    """Kernel: Glorot's uniform; recurrent kernel: orthogonal rows; forget bias: one."""
    size, units = 60, 40
    layer = LSTM(units)
    layer.build((None, None, size))
    names = [v.name.split(":")[0].split("/")[-1] for v in layer.trainable_variables]
    assert names == ["kernel", "recurrent_kernel", "bias"]
    kernel, recurrent, bias = layer.get_weights()
    theirs = tf.keras.layers.LSTM(units)
    theirs.build((None, None, size))
    assert [w.shape for w in theirs.get_weights()] == [w.shape for w in (kernel, recurrent, bias)]

    limit = np.sqrt(6.0 / (size + 4 * units))
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    assert kernel.std() == pytest.approx(limit / np.sqrt(3.0), rel=0.02)
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(units), atol=1e-5)
    np.testing.assert_array_equal(bias, theirs.get_weights()[2])
    np.testing.assert_array_equal(bias.reshape(4, units).mean(axis=1), [0, 1, 0, 0])


@pytest.mark.parametrize("mask", ["none", "arbitrary"])
def test_clients_weights_are_vectorised(mask):
    """As stacked execution does: many weights forward inside, the gradient of all outside."""
    clients = 3
    random = np.random.default_rng(3)
    inputs = random.normal(size=[clients, BATCH, TIME, SIZE]).astype(np.float32)
    upstream = random.normal(size=[clients, BATCH, TIME, UNITS]).astype(np.float32)
    weights = [draw_weights(random) for _ in range(clients)]
    stacked = [np.stack(part) for part in zip(*weights)]
    mask = MASKS[mask]

    def forward(element):
        inputs, kernel, recurrent, bias = element
        given = [kernel, recurrent, bias]
        with tf.variable_creator_scope(lambda _, **kwargs: given.pop(0)):
            return LSTM(UNITS)(inputs, mask=None if mask is None else tf.constant(mask))

    @tf.function(autograph=False)
    def run(*parts):
        with tf.GradientTape() as tape:
            tape.watch(parts)
            outputs = tf.vectorized_map(forward, parts, fallback_to_while_loop=False)
            total = tf.reduce_sum(outputs * upstream)
        return [outputs, *tape.gradient(total, parts)]

    together = [t.numpy() for t in run(*map(tf.constant, (inputs, *stacked)))]
    for client in range(clients):
        layer = tf.keras.layers.LSTM(UNITS, return_sequences=True)
        alone = outputs_and_gradients(
            layer, inputs[client], weights[client], mask, upstream[client]
        )
        for part, own in zip(together, alone):
            np.testing.assert_allclose(part[client], own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", ["none", "all", "trailing"])
def test_two_directions_in_one_loop_are_keras_bidirectional(mask, training):
    random = np.random.default_rng(5)
    inputs = random.normal(size=[BATCH, TIME, SIZE]).astype(np.float32)
    upstream = random.normal(size=[BATCH, 2 * UNITS]).astype(np.float32)
    weights = [*draw_weights(random), *draw_weights(random)]
    keras_layer = tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(UNITS))
    ours, keras = (
        outputs_and_gradients(layer, inputs, weights, MASKS[mask], upstream, training=training)
        for layer in (BidirectionalEnds(UNITS), keras_layer)
    )
    assert len(ours) == 2 + 2 * 3
    for our, their in zip(ours, keras):
        np.testing.assert_allclose(our, their, rtol=1e-4, atol=1e-5)
        assert np.abs(their).max() > 0.1

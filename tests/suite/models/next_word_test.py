"""Our LSTMs against Keras' own, and the next word model: its sizes, padding and embeddings."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.suite.models.next_word import LSTM, BidirectionalEnds, next_word_lstm

LAYERS = tf.keras.layers
BATCH, TIME, SIZE, UNITS = 4, 6, 3, 5
MASKS = {
    "none": None,
    # Among them one without padding and one that is nothing else.
    "trailing": np.arange(TIME) < np.array([[6], [2], [0], [5]]),
    "arbitrary": np.random.default_rng(4).random([BATCH, TIME]) < 0.5,
}


def keras_one():
    return LAYERS.LSTM(UNITS, return_sequences=True)


def keras_two():
    return LAYERS.Bidirectional(LAYERS.LSTM(UNITS))


# Our layer, Keras', and the shape of outputs.
PAIRS = {
    "one": (LSTM, keras_one, [BATCH, TIME, UNITS]),
    "two": (BidirectionalEnds, keras_two, [BATCH, 2 * UNITS]),
}


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def draw_weights(seed):
    shapes = ([SIZE, 4 * UNITS], [UNITS, 4 * UNITS], [4 * UNITS])
    return [draw(*shape, seed=[seed, i]) for i, shape in enumerate(shapes)]


def outputs_and_gradients(layer, inputs, weights, mask, upstream, *, training=True):
    """Returns outputs, and the gradients of inputs and weights."""
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


@pytest.mark.exhaustive(but=("one-arbitrary-False", "one-none-True"))
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("pair", "mask"), [*(("one", mask) for mask in MASKS), ("two", "none"), ("two", "trailing")]
)
def test_outputs_and_gradients_are_keras_own(pair, mask, training):
    weights = draw_weights(1) + (draw_weights(2) if pair == "two" else [])
    our_layer, keras_layer, shape = PAIRS[pair]
    inputs, upstream = draw(BATCH, TIME, SIZE), draw(*shape, seed=9)
    ours, keras = (
        outputs_and_gradients(layer, inputs, weights, MASKS[mask], upstream, training=training)
        for layer in (our_layer(UNITS), keras_layer())
    )
    assert len(ours) == 2 + len(weights)
    for our, their in zip(ours, keras):
        np.testing.assert_allclose(our, their, rtol=1e-4, atol=1e-5)
        assert np.abs(their).max() > 0.05


def test_weights_start_as_keras_own():
    """Kernel: Glorot's uniform; recurrent kernel: orthogonal rows; forget bias: one."""
    size, units = 60, 40
    layer, theirs = LSTM(units), LAYERS.LSTM(units)
    for one in (layer, theirs):
        one.build((None, None, size))
    names = [v.name.split(":")[0].split("/")[-1] for v in layer.trainable_variables]
    assert names == ["kernel", "recurrent_kernel", "bias"]
    kernel, recurrent, bias = layer.get_weights()
    limit = np.sqrt(6.0 / (size + 4 * units))
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    assert kernel.std() == pytest.approx(limit / np.sqrt(3.0), rel=0.02)
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(units), atol=1e-5)
    np.testing.assert_array_equal(bias, theirs.get_weights()[2])


@pytest.mark.exhaustive
def test_clients_weights_are_vectorised():
    """As stacked execution does: many weights forward inside, the gradient of all outside."""
    clients, mask = 3, MASKS["arbitrary"]
    inputs, upstream = draw(clients, BATCH, TIME, SIZE), draw(BATCH, TIME, UNITS, seed=9)
    weights = [draw_weights(client) for client in range(clients)]
    stacked = [np.stack(part) for part in zip(*weights)]

    def forward(element):
        inputs, *given = element
        with tf.variable_creator_scope(lambda _, **kwargs: given.pop(0)):
            return LSTM(UNITS)(inputs, mask=tf.constant(mask))

    @tf.function(autograph=False)
    def run(*parts):
        with tf.GradientTape() as tape:
            tape.watch(parts)
            outputs = tf.vectorized_map(forward, parts, fallback_to_while_loop=False)
            total = tf.reduce_sum(outputs * upstream)
        return [outputs, *tape.gradient(total, parts)]

    together = [t.numpy() for t in run(*map(tf.constant, (inputs, *stacked)))]
    for client in range(clients):
        alone = outputs_and_gradients(keras_one(), inputs[client], weights[client], mask, upstream)
        for part, own in zip(together, alone):
            np.testing.assert_allclose(part[client], own, rtol=1e-4, atol=1e-5)


NUM_KNOWN, BUCKETS = 11, 4
# Tokens from 11 on are buckets.
SENTENCES = np.array(
    [[1, 3, 12, 4, 0, 0], [1, 5, 6, 2, 0, 0], [1, 14, 11, 14, 2, 0], [1, 7, 7, 8, 9, 10]]
)


@pytest.fixture(name="model", scope="module")
def _model():
    """With embeddings that are large enough to be seen."""
    sizes = {"embedding_dim": 5, "lstm_units": 6, "projection_dim": 7}
    model = next_word_lstm(num_known=NUM_KNOWN, num_oov_buckets=BUCKETS, **sizes)()
    model.set_weights([draw(*w.shape, seed=i) for i, w in enumerate(model.get_weights())])
    return model


def predict(model, token, *, junk=0):
    """Predicts from tokens; `junk` stands where a lookup is of no use."""
    token = np.asarray(token, np.int32)
    is_known = token < NUM_KNOWN
    known = np.where(is_known, token, junk)
    other = np.where(is_known, junk, token - NUM_KNOWN)
    features = {"token": token, "known_token": known, "oov_token": other}
    return model({name: tf.constant(ids, tf.int32) for name, ids in features.items()})


def test_the_papers_sizes():
    """Of 10,000 words, three special tokens and 500 buckets (section C.2)."""
    model = next_word_lstm(num_known=10_003, num_oov_buckets=500)()
    shapes = {v.name.split(":")[0]: tuple(v.shape) for v in model.trainable_variables}
    assert shapes == {
        "known_embedding/embeddings": (10_003, 96),
        "oov_embedding/embeddings": (500, 96),
        "lstm/kernel": (96, 2680),
        "lstm/recurrent_kernel": (670, 2680),
        "lstm/bias": (2680,),
        "projection/kernel": (670, 96),
        "projection/bias": (96,),
        "logits/kernel": (96, 10_503),
        "logits/bias": (10_503,),
    }
    assert not model.non_trainable_variables


def test_what_follows_changes_nothing_and_padding_is_ignored_wherever_it_is(model):
    outputs = predict(model, SENTENCES).numpy()
    assert outputs.shape == (4, 6, 15)
    for length in (1, 3):
        cut = predict(model, SENTENCES[:, :length]).numpy()
        np.testing.assert_allclose(cut, outputs[:, :length], rtol=1e-5, atol=1e-6)
    # Between words it leaves the state alone; after them the last prediction stands.
    gap = predict(model, [[1, 3, 0, 12, 0, 4]]).numpy()[0]
    np.testing.assert_allclose(gap[[0, 1, 3, 5]], outputs[0, :4], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs[0, 4:], outputs[0, [3, 3]], rtol=1e-5, atol=1e-6)


def test_lookups_of_no_use_are_not_seen(model):
    """Of a bucket `known_token` may be anything, and of another token `oov_token`."""
    junk = predict(model, SENTENCES, junk=3)
    np.testing.assert_array_equal(junk, predict(model, SENTENCES))


@pytest.mark.parametrize(
    ("layer", "tokens"),
    # Not of padding.
    [("oov_embedding", range(NUM_KNOWN, NUM_KNOWN + BUCKETS)), ("known_embedding", range(1, 11))],
)
def test_each_embedding_matters_to_its_own_tokens(model, layer, tokens):
    every = np.arange(NUM_KNOWN + BUCKETS)[:, np.newaxis]
    before, outputs = model.get_weights(), predict(model, every).numpy()
    table = model.get_layer(layer).trainable_variables[0]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.sin(predict(model, SENTENCES)))
    gradient = tf.convert_to_tensor(tape.gradient(total, table)).numpy()
    used = np.intersect1d(SENTENCES, tokens) - (NUM_KNOWN if layer == "oov_embedding" else 0)
    np.testing.assert_array_equal(np.flatnonzero(gradient.any(axis=1)), used)
    table.assign_add(tf.ones_like(table))
    changed = np.abs(predict(model, every).numpy() - outputs).max(axis=(1, 2)) > 1e-3
    model.set_weights(before)
    np.testing.assert_array_equal(np.flatnonzero(changed), tokens)

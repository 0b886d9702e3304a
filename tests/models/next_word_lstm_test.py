"""The next word model: its sizes, its padding, and what its two embeddings are for."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.models.next_word import next_word_lstm

NUM_KNOWN, BUCKETS = 11, 4
SIZES = {"embedding_dim": 5, "lstm_units": 6, "projection_dim": 7}


def build(**options):
    return next_word_lstm(num_known=NUM_KNOWN, num_oov_buckets=BUCKETS, **{**SIZES, **options})()


@pytest.fixture(name="model", scope="module")
def _model():
    """With embeddings that are large enough to be seen."""
    model = build()
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return model


def inputs(token, *, junk=0):
    """Inputs of tokens; `junk` stands where a lookup is of no use."""
    token = np.asarray(token, np.int32)
    known = token < NUM_KNOWN
    return {
        "token": tf.constant(token),
        "known_token": tf.constant(np.where(known, token, junk).astype(np.int32)),
        "oov_token": tf.constant(np.where(known, junk, token - NUM_KNOWN).astype(np.int32)),
    }


# Tokens from 11 on are buckets.
SENTENCES = [[1, 3, 12, 4, 0, 0], [1, 5, 6, 2, 0, 0], [1, 14, 11, 14, 2, 0], [1, 7, 7, 8, 9, 10]]
LENGTHS = [4, 4, 5, 6]


def test_layers_and_sizes():
    model = build()
    shapes = {v.name.split(":")[0]: tuple(v.shape) for v in model.trainable_variables}
    assert shapes == {
        "known_embedding/embeddings": (11, 5),
        "oov_embedding/embeddings": (4, 5),
        "lstm/kernel": (5, 24),
        "lstm/recurrent_kernel": (6, 24),
        "lstm/bias": (24,),
        "projection/kernel": (6, 7),
        "projection/bias": (7,),
        "logits/kernel": (7, 15),
        "logits/bias": (15,),
    }
    assert model.trainable_variables and not model.non_trainable_variables
    assert model(inputs(SENTENCES)).shape == [4, 6, 15]
    assert sorted(model.input_names) == ["known_token", "oov_token", "token"]


def test_the_papers_sizes():
    """Of 10,000 words, three special tokens and 500 buckets (section C.2)."""
    model = next_word_lstm(num_known=10_003, num_oov_buckets=500)()
    shapes = [tuple(v.shape) for v in model.trainable_variables]
    assert shapes == [
        (10_003, 96), (500, 96),
        (96, 2680), (670, 2680), (2680,),
        (670, 96), (96,),
        (96, 10_503), (10_503,),
    ]  # fmt: skip


def test_what_follows_changes_nothing(model):
    outputs = model(inputs(SENTENCES)).numpy()
    for length in (1, 3):
        changed = np.array(SENTENCES)
        changed[:, length:] = [2, 13, 5, 9, 1][: 6 - length]
        others = model(inputs(changed)).numpy()
        np.testing.assert_allclose(others[:, :length], outputs[:, :length], rtol=1e-5, atol=1e-6)
        assert np.abs(others[:, length:] - outputs[:, length:]).max() > 0.1


def test_padding_is_ignored_wherever_it_is(model):
    outputs = model(inputs(SENTENCES)).numpy()
    for row, length in enumerate(LENGTHS):
        trimmed = model(inputs([SENTENCES[row][:length]])).numpy()[0]
        np.testing.assert_allclose(trimmed, outputs[row, :length], rtol=1e-5, atol=1e-6)
    # Between words it leaves the state alone; after them the last prediction stands.
    gap = model(inputs([[1, 3, 0, 12, 0, 4]])).numpy()[0]
    np.testing.assert_allclose(gap[[0, 1, 3, 5]], outputs[0, :4], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs[0, 4:], outputs[0, [3, 3]], rtol=1e-5, atol=1e-6)


def test_lookups_of_no_use_are_not_seen(model):
    """Of a bucket `known_token` may be anything, and of another token `oov_token`."""
    outputs = model(inputs(SENTENCES)).numpy()
    np.testing.assert_array_equal(model(inputs(SENTENCES, junk=3)), outputs)


def test_each_embedding_matters_to_its_own_tokens(model):
    token = np.arange(NUM_KNOWN + BUCKETS).reshape(-1, 1)
    outputs = model(inputs(token)).numpy()
    assert len(np.unique(outputs[:, 0, 0])) == NUM_KNOWN + BUCKETS
    before = model.get_weights()
    for name, changes in (
        ("oov_embedding", np.arange(NUM_KNOWN, NUM_KNOWN + BUCKETS)),
        ("known_embedding", np.arange(1, NUM_KNOWN)),  # Not of padding.
    ):
        layer = model.get_layer(name)
        layer.set_weights([1.0 + layer.get_weights()[0]])
        others = model(inputs(token)).numpy()
        changed = np.flatnonzero(np.abs(others - outputs).max(axis=(1, 2)) > 1e-3)
        model.set_weights(before)
        np.testing.assert_array_equal(changed, changes)


def gradient_of_embedding(model, name, token):
    table = model.get_layer(name).trainable_variables[0]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.sin(model(inputs(token))))
    return tf.convert_to_tensor(tape.gradient(total, table)).numpy()


def test_rows_have_gradients_of_their_own_tokens_only(model):
    gradient = gradient_of_embedding(model, "oov_embedding", SENTENCES)
    assert np.flatnonzero(gradient.any(axis=1)).tolist() == [0, 1, 3]  # 11, 12 and 14.
    assert not gradient_of_embedding(model, "oov_embedding", [SENTENCES[1]]).any()
    known = gradient_of_embedding(model, "known_embedding", [SENTENCES[2]])
    assert np.flatnonzero(known.any(axis=1)).tolist() == [1, 2]


def test_a_recurrent_layer_of_ones_own():
    made = []

    def recurrent_layer(units, name):
        made.append((units, name))
        return tf.keras.layers.GRU(units, return_sequences=True, name=name)

    model = build(recurrent_layer=recurrent_layer)
    assert made == [(6, "lstm")]
    assert model(inputs(SENTENCES)).shape == [4, 6, 15]

"""The document model: against Keras' own layers, its padding, and who its users are."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.client.pooled_batches import choose_rows, longest_first, pool_examples
from fedpersonal.client.values import Examples
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.documents import CharacterEncoder, document_classifier

CHARACTERS, OUTPUTS, USERS = 11, 4, 3
ENCODER = CharacterEncoder(CHARACTERS, character_dim=3, lstm_units=5)
SIZES = {"user_dim": 2, "hidden_units": (6, 7)}
# Among them one of one character and one without padding.
LENGTHS = [4, 1, 6, 3, 2]
WHOSE = [2, 0, 1, 2, 0]


def texts_of(lengths, *, time=6):
    """Draws texts, padded at the end."""
    drawn = np.random.default_rng(1).integers(1, CHARACTERS, [len(lengths), time])
    return np.where(np.arange(time) < np.array(lengths)[:, None], drawn, 0).astype(np.int32)


def build(**options):
    return document_classifier(ENCODER, num_outputs=OUTPUTS, **{**SIZES, **options})


def draw(model):
    """Gives a model weights that are large enough to be seen, and returns them by name."""
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return {v.name.split(":")[0]: v.numpy() for v in model.trainable_variables}


def inputs(texts, *, users):
    features = {"text": tf.constant(texts)}
    return {**features, "user": tf.constant(WHOSE, tf.int32)} if users else features


def keras_logits(weights, texts, *, users):
    """The same by Keras' embedding and bidirectional LSTM, and NumPy."""
    embedding = tf.keras.layers.Embedding(CHARACTERS, 3, mask_zero=True)
    encoder = tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(5))
    network = tf.keras.Sequential([embedding, encoder])
    network(tf.constant(texts))
    embedding.set_weights([weights["characters/embeddings"]])
    parts = ("kernel", "recurrent_kernel", "bias")
    encoder.set_weights(
        [weights[f"encoder/{d}_{part}"] for d in ("forward", "backward") for part in parts]
    )
    hidden = network(tf.constant(texts)).numpy()
    if users:
        hidden = np.concatenate([hidden, weights["user_embedding/embeddings"][WHOSE]], axis=1)
    for layer in ("hidden_0", "hidden_1"):
        hidden = np.maximum(hidden @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"], 0.0)
    return hidden @ weights["logits/kernel"] + weights["logits/bias"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("users", [None, USERS])
def test_outputs_are_those_of_keras_own_layers(users, training):
    model = build(num_users=users)()
    weights, texts = draw(model), texts_of(LENGTHS)
    logits = model(inputs(texts, users=users), training=training).numpy()
    assert logits.shape == (5, OUTPUTS)
    expected = keras_logits(weights, texts, users=users)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected, axis=0).min() > 0.1


def test_layers_and_sizes():
    def shapes(**options):
        model = build(**options)()
        assert not model.non_trainable_variables
        return {v.name.split(":")[0]: tuple(v.shape) for v in model.trainable_variables}

    with_users = shapes(num_users=USERS)
    assert with_users == {
        "characters/embeddings": (11, 3),
        "encoder/forward_kernel": (3, 20),
        "encoder/forward_recurrent_kernel": (5, 20),
        "encoder/forward_bias": (20,),
        "encoder/backward_kernel": (3, 20),
        "encoder/backward_recurrent_kernel": (5, 20),
        "encoder/backward_bias": (20,),
        "user_embedding/embeddings": (3, 2),
        "hidden_0/kernel": (12, 6),
        "hidden_0/bias": (6,),
        "hidden_1/kernel": (6, 7),
        "hidden_1/bias": (7,),
        "logits/kernel": (7, 4),
        "logits/bias": (4,),
    }
    without = shapes()
    assert with_users.keys() - without.keys() == {"user_embedding/embeddings"}
    assert without["hidden_0/kernel"] == (10, 6)


def test_padding_does_not_matter():
    model = build()()
    draw(model)
    texts = texts_of(LENGTHS)
    logits = model(inputs(texts, users=False)).numpy()
    longer = model(inputs(np.pad(texts, [(0, 0), (0, 5)]), users=False)).numpy()
    np.testing.assert_allclose(longer, logits, rtol=1e-5, atol=1e-5)
    for row, length in enumerate(LENGTHS):
        alone = model(inputs(texts[row : row + 1, :length], users=False)).numpy()
        np.testing.assert_allclose(alone[0], logits[row], rtol=1e-5, atol=1e-5)
    # The last character of a text does.
    last = texts.copy()
    last[range(5), np.array(LENGTHS) - 1] = 1 + last[range(5), np.array(LENGTHS) - 1] % 10
    changed = np.abs(model(inputs(last, users=False)).numpy() - logits).max(axis=1)
    assert changed.min() > 1e-3


def partitioned():
    return PartitionedModel(
        build(num_users=USERS),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        label_spec=tf.TensorSpec([None], tf.int32),
        sequence_length=ENCODER.lengths,
    )


def test_texts_cut_to_the_longest_chosen_give_the_same():
    """As pooled execution cuts them: longest first, then a chunk of these."""
    model = partitioned()
    texts = texts_of(LENGTHS)
    values = model.initial_global_values()
    # One client with a batch of five.
    examples = Examples(
        features={k: v[None, None] for k, v in inputs(texts, users=True).items()},
        labels=tf.zeros([1, 1, 5], tf.int32),
        mask=tf.ones([1, 1, 5]),
        rows={},
        positions={},
    )

    @tf.function(autograph=False)
    def run():
        pool = pool_examples(model, examples)
        order = longest_first(model, pool, tf.range(5))
        chosen = choose_rows(model, pool, order[2:])
        features, weights = chosen.features, dict(values)
        whole, _ = model.predict(
            weights, {k: v[0, 0] for k, v in examples.features.items()}, training=False
        )
        cut, _ = model.predict(weights, features, training=False)
        return order, features["text"], cut, tf.gather(whole, order[2:])

    order, text, cut, uncut = (tensor.numpy() for tensor in run())
    assert [LENGTHS[row] for row in order] == [6, 4, 3, 2, 1]
    assert text.shape == (3, 3)
    np.testing.assert_allclose(cut, uncut, rtol=1e-5, atol=1e-6)
    assert np.ptp(uncut, axis=0).max() > 1e-3


def test_a_users_row_moves_that_users_texts_alone():
    model = build(num_users=USERS)()
    draw(model)
    features = inputs(texts_of(LENGTHS), users=True)
    before = model(features).numpy()
    table = model.get_layer("user_embedding")
    rows = table.get_weights()[0]
    rows[2] += 1.0
    table.set_weights([rows])
    moved = np.abs(model(features).numpy() - before).max(axis=1) > 1e-3
    assert moved.tolist() == [whose == 2 for whose in WHOSE]


def test_a_user_may_have_a_number_an_output():
    """It is added to the output, and nothing at first."""
    model, without = (build(num_users=users, user_dim=None)() for users in (USERS, None))
    weights = draw(model)
    own = weights.pop("user_embedding/embeddings")
    assert own.shape == (USERS, OUTPUTS) and weights["hidden_0/kernel"].shape == (10, 6)
    without.set_weights([weights[v.name.split(":")[0]] for v in without.weights])
    expected = without(inputs(texts_of(LENGTHS), users=False)).numpy() + own[WHOSE]
    found = model(inputs(texts_of(LENGTHS), users=True)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    start = build(num_users=USERS, user_dim=None)().get_layer("user_embedding").get_weights()[0]
    assert not start.any()

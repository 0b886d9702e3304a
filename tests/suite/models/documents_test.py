"""The document model: against Keras' own layers and NumPy, and its padding."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.model.lookups import check_lookups
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models.documents import (
    SCALE,
    CharacterEncoder,
    HashedWordEncoder,
    document_classifier,
)

IDS, OUTPUTS, USERS = 11, 4, 3
CHARACTERS = CharacterEncoder(IDS, character_dim=3, lstm_units=5)
WORDS = HashedWordEncoder(IDS, word_dim=3)
# Among them a text of one character and one without padding; of words one is without any.
LENGTHS, COUNTS = [4, 1, 6, 3, 2], [4, 0, 6, 3, 2]
WHOSE = np.array([2, 0, 1, 2, 0], np.int32)


def inputs_of(encoder, lengths, *, padding=0, users=False):
    """Draws texts, padded at the end."""
    ids = np.random.default_rng(1).integers(1, IDS, [len(lengths), 6])
    text = np.where(np.arange(6) < np.array(lengths)[:, None], ids, 0)
    features = {"text": np.pad(text, [(0, 0), (0, padding)])}
    if users:
        features["user"] = WHOSE
    if encoder is WORDS:
        features["num_words"] = np.array(lengths)
    return {name: tf.constant(value, tf.int32) for name, value in features.items()}


def draw(model):
    """Gives a model weights that are large enough to be seen, and returns them by name."""
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return {v.name.split(":")[0]: v.numpy() for v in model.trainable_variables}


def kerass_vectors(weights, texts):
    """The last states of Keras' bidirectional LSTM."""
    embedding = tf.keras.layers.Embedding(IDS, 3, mask_zero=True)
    encoder = tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(5))
    network = tf.keras.Sequential([embedding, encoder])
    network(texts)
    embedding.set_weights([weights["characters/embeddings"]])
    parts = ("kernel", "recurrent_kernel", "bias")
    encoder.set_weights(
        [weights[f"encoder/{d}_{part}"] for d in ("forward", "backward") for part in parts]
    )
    return network(texts).numpy()


def bags(weights, texts):
    """Sums rows text by text."""
    table = weights["words/embeddings"]
    sums = [sum((table[i] for i in row[:n]), np.zeros(3)) for row, n in zip(texts.numpy(), COUNTS)]
    return np.stack(sums) / np.sqrt(np.maximum(COUNTS, 1))[:, None]


CASES = {
    CHARACTERS: (LENGTHS, kerass_vectors, "characters/embeddings"),
    WORDS: (COUNTS, bags, "words/embeddings"),
}


@pytest.mark.exhaustive(but=("characters-2-False",))
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("user_dim", [2, None, 0])
@pytest.mark.parametrize("encoder", CASES, ids=["characters", "words"])
def test_outputs_are_those_of_keras_own_layers_and_numpy(encoder, user_dim, training):
    """Of 0 numbers a user: of a model that knows no users."""
    users = {} if user_dim == 0 else {"num_users": USERS, "user_dim": user_dim}
    lengths, vectors, table = CASES[encoder]
    build = document_classifier(encoder, num_outputs=OUTPUTS, hidden_units=(6, 7), **users)
    model, features = build(), inputs_of(encoder, lengths, users=bool(users))
    weights = draw(model)
    assert table in weights and not model.non_trainable_variables
    hidden = vectors(weights, features["text"])
    if user_dim:
        hidden = np.concatenate([hidden, weights["user_embedding/embeddings"][WHOSE]], axis=1)
    for layer in ("hidden_0", "hidden_1"):
        hidden = np.maximum(hidden @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"], 0.0)
    expected = hidden @ weights["logits/kernel"] + weights["logits/bias"]
    if user_dim is None:  # A number an output, nothing at first.
        expected += weights["user_embedding/embeddings"][WHOSE]
        assert not build().get_layer("user_embedding").get_weights()[0].any()
    logits = model(features, training=training).numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected, axis=0).min() > 0.1


def test_without_hidden_layers_scores_are_scaled():
    encoder = HashedWordEncoder(IDS, word_dim=OUTPUTS)
    model = document_classifier(encoder, num_outputs=OUTPUTS, hidden_units=None)()
    weights, features = draw(model), inputs_of(WORDS, COUNTS)
    bag = tf.keras.Model(model.inputs, model.get_layer("bag").output)(features).numpy()
    np.testing.assert_allclose(model(features), SCALE * bag + weights["logits/bias"], rtol=1e-5)


@pytest.mark.parametrize("encoder", CASES, ids=["characters", "words"])
def test_padding_does_not_matter(encoder):
    lengths, _, table = CASES[encoder]
    model = document_classifier(encoder, num_outputs=OUTPUTS)()
    draw(model)
    features = inputs_of(encoder, lengths)
    logits = model(features).numpy()
    longer = model(inputs_of(encoder, lengths, padding=5)).numpy()
    np.testing.assert_allclose(longer, logits, rtol=1e-5, atol=1e-5)
    # The last character or word of a text does.
    text, ends = features["text"].numpy(), np.maximum(lengths, 1) - 1
    text[range(5), ends] = 1 + text[range(5), ends] % 10
    changed = np.abs(model({**features, "text": text}).numpy() - logits).max(axis=1) > 1e-3
    assert changed.tolist() == [length > 0 for length in lengths]


@pytest.mark.parametrize("encoder", CASES, ids=["characters", "words"])
def test_what_encoders_say_of_themselves(encoder):
    build = document_classifier(encoder, num_outputs=1)
    options = {"lookups": encoder.lookups, "sequence_length": encoder.lengths}
    model = PartitionedModel(build, **options)
    check_lookups(model)
    assert {v.layer for v in model.variables} == {*encoder.layers, "hidden_0", "logits"}
    # A text without words has one place all the same.
    lengths = encoder.lengths(inputs_of(encoder, CASES[encoder][0]), tf.zeros([5]))
    assert lengths.numpy().tolist() == LENGTHS

"""The bag of hashed words against NumPy; characters are held to Keras' layers beside the MLP."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.model.lookups import check_lookups
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.documents import CharacterEncoder, HashedWordEncoder, document_classifier

ENCODER = HashedWordEncoder(9, word_dim=3)
# The second has no words, the fourth no padding.
COUNTS = np.array([2, 0, 1, 5], np.int32)
WHOSE = np.array([1, 0, 1, 1], np.int32)


def texts():
    ids = np.random.default_rng(1).integers(1, 9, [4, 5])
    return np.where(np.arange(5) < COUNTS[:, None], ids, 0).astype(np.int32)


def bags(table):
    """Sums rows text by text."""
    sums = [sum((table[i] for i in row[:n]), np.zeros(3)) for row, n in zip(texts(), COUNTS)]
    return np.stack(sums) / np.sqrt(np.maximum(COUNTS, 1))[:, None]


def draw(model):
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return [w.numpy() for w in model.weights]


@pytest.mark.parametrize("places", [0, 3])
def test_a_bag_is_the_sum_of_its_words_over_the_root_of_their_number(places):
    """However much padding follows, and whatever row 0 of the table is."""
    inputs = ENCODER.inputs()
    model = tf.keras.Model(inputs, ENCODER.encode(inputs))
    (table,) = draw(model)
    padded = np.pad(texts(), [(0, 0), (0, places)])
    found = model({"text": padded, "num_words": COUNTS}).numpy()
    np.testing.assert_allclose(found, bags(table), rtol=1e-5, atol=1e-6)
    assert not found[1].any() and np.abs(found[[0, 2, 3]]).min() > 1e-3


def test_logits_are_linear_in_the_bag_and_the_user():
    model = document_classifier(ENCODER, num_outputs=4, num_users=2, user_dim=2, hidden_units=())()
    words, users, kernel, bias = draw(model)
    assert [v.name.split(":")[0] for v in model.weights] == [
        "words/embeddings",
        "user_embedding/embeddings",
        "logits/kernel",
        "logits/bias",
    ]
    logits = model({"text": texts(), "num_words": COUNTS, "user": WHOSE}).numpy()
    both = np.concatenate([bags(words), users[WHOSE]], axis=1)
    np.testing.assert_allclose(logits, both @ kernel + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoder", [ENCODER, CharacterEncoder(9, 3, 2)])
def test_what_encoders_say_of_themselves(encoder):
    model = PartitionedModel(
        document_classifier(encoder, num_outputs=1),
        lookups=encoder.lookups,
        sequence_length=encoder.lengths,
    )
    check_lookups(model)
    layers = {v.layer for v in model.variables}
    assert layers == {*encoder.layers, "hidden_0", "logits"}
    features = {"text": tf.constant(texts()), "num_words": tf.constant(COUNTS)}
    lengths = encoder.lengths(features, tf.zeros([4])).numpy()
    # A text without words has one place all the same; characters always have one.
    assert lengths.tolist() == [2, int(encoder is ENCODER), 1, 5]

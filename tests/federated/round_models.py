"""Small models of all kinds, and clients for them, to compute rounds with."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal.data.clients import ClientDataset
from fedpersonal.model.metrics import MAE, RMSE, Metric
from fedpersonal.suite.models.factorization import matrix_factorization
from fedpersonal.suite.models.next_word import next_word_lstm
from fedpersonal.suite.models.tokens import count_tokens, sum_cross_entropy, token_accuracy
from fedpersonal.suite.tasks.ratings.data import add_rated

BATCH_SIZE, NUM_ITEMS, NUM_WORDS, TIME = 3, 7, 11, 5
# Batches that are full, filled up, and alone; and a client without any.
COUNTS = (7, 3, 0, 10, 1, 5)
KERAS = tf.keras.layers


def draw_clients():
    """Draws what all models take: few items, which repeat within a batch."""
    random, count = np.random.default_rng(3), sum(COUNTS)
    item = random.integers(0, NUM_ITEMS - 3, count).astype(np.int32)
    users = np.repeat(np.arange(len(COUNTS), dtype=np.int32), COUNTS)
    return ClientDataset(
        client_ids=[f"client{i}" for i in range(len(COUNTS))],
        offsets=np.append(0, np.cumsum(COUNTS)),
        features={
            "x": random.normal(size=(count, 2)).astype(np.float32),
            "item": item,
            "user": users,
            "nobody": np.zeros(count, np.int32),
            "words": random.integers(0, NUM_ITEMS, (count, 4)).astype(np.int32),
        },
        labels=random.normal(1.0, 1.0, count).astype(np.float32),
    )


RATINGS = draw_clients()
RATINGS = add_rated(RATINGS, RATINGS, places=3)
CLASSES = dataclasses.replace(RATINGS, labels=(RATINGS.features["item"] % 3).astype(np.int32))


def draw_sentences():
    """Draws sentences of all lengths, also of one token, of which there is nothing to predict."""
    random = np.random.default_rng(0)
    tokens = np.zeros([sum(COUNTS), TIME + 1], np.int32)
    for row in tokens:
        length = random.integers(1, TIME + 2)
        row[:length] = random.integers(1, NUM_WORDS, length)
    token, known = tokens[:, :-1], tokens[:, :-1] < NUM_WORDS - 4
    features = {
        "token": token,
        "known_token": np.where(known, token, 0),
        "oov_token": np.where(known, 0, token - NUM_WORDS + 4),
    }
    return dataclasses.replace(RATINGS, features=features, labels=tokens[:, 1:])


def build_factors(**options):
    return matrix_factorization(
        **{
            "num_items": NUM_ITEMS,
            "embedding_dim": 2,
            "user_initializer": tf.keras.initializers.Constant([0.4, -0.3]),
            "embedding_initializer": tf.keras.initializers.RandomNormal(stddev=0.5),
            **options,
        }
    )


BUILD_BIASED = build_factors(use_biases=True, mean_rating=1.0)
BUILD_USERS = build_factors(num_users=len(COUNTS), user_initializer="uniform")


def build_classifier():
    x = tf.keras.Input([2], name="x")
    start = tf.keras.initializers.Constant(np.random.default_rng(1).normal(size=(4, 3)))
    hidden = KERAS.Dense(4, activation="tanh", name="shared")(x)
    head = KERAS.Dense(3, activation="softmax", kernel_initializer=start, name="head")
    return tf.keras.Model({"x": x}, head(hidden))


class Branching(tf.keras.Model):
    """Leaves it to AutoGraph to make a part of the graph of its `if`."""

    def __init__(self):
        super().__init__(name="branching")
        self.first = KERAS.Dense(3, activation="tanh", name="first")
        # A loss without examples, each client's own.
        penalty = tf.keras.regularizers.L2(0.1)
        self.last = KERAS.Dense(1, kernel_regularizer=penalty, name="last")

    def call(self, inputs):
        hidden = self.first(inputs["x"])
        if tf.reduce_sum(hidden) > 0:
            hidden = -hidden
        return self.last(hidden)


def build_words():
    words = tf.keras.Input([4], dtype=tf.int32, name="words")
    vectors = KERAS.Embedding(NUM_ITEMS, 2, name="vectors")(words)
    biases = KERAS.Embedding(NUM_ITEMS, 1, name="biases")(words)
    joined = KERAS.Flatten()(KERAS.Concatenate()([vectors, biases]))
    return tf.keras.Model({"words": words}, KERAS.Dense(1, name="dense")(joined))


def build_users():
    x, nobody = tf.keras.Input([2], name="x"), tf.keras.Input([], dtype=tf.int32, name="nobody")
    user = KERAS.Embedding(1, 3, name="user_embedding")(nobody)
    item = tf.keras.Input([], dtype=tf.int32, name="item")
    both = tf.concat([x, user, KERAS.Embedding(NUM_ITEMS, 2, name="table")(item)], -1)
    hidden = KERAS.Dense(4, activation="tanh", name="hidden")(both)
    inputs = {"x": x, "nobody": nobody, "item": item}
    return tf.keras.Model(inputs, KERAS.Dense(1, name="out")(hidden))


def build_table():
    item = tf.keras.Input([], dtype=tf.int32, name="item")
    row = KERAS.Embedding(NUM_ITEMS, 2, embeddings_initializer="normal", name="table")(item)
    head = KERAS.Dense(1, name="head")(row) + KERAS.Dense(1, use_bias=False, name="own")(row)
    return tf.keras.Model({"item": item}, head)


def build_constrained():
    x = tf.keras.Input([2], name="x")
    hidden = KERAS.Dense(3, "tanh", kernel_constraint="unit_norm", name="body")(x)
    head = KERAS.Dense(1, kernel_constraint="non_neg", bias_constraint="max_norm", name="head")
    return tf.keras.Model({"x": x}, head(hidden))


def build_noisy():
    x = tf.keras.Input([2], name="x")
    hidden = KERAS.Dense(4, name="body")(KERAS.Dropout(0.3)(x))
    return tf.keras.Model({"x": x}, KERAS.Dense(1, name="head")(KERAS.GaussianNoise(0.1)(hidden)))


def build_logarithm():
    """What it makes of padding is infinite, and so is its slope."""
    x = tf.keras.Input([2], name="x")
    hidden = KERAS.Dense(2, activation="tanh", name="shared")(
        KERAS.Lambda(lambda x: tf.math.log(tf.square(x)))(x)
    )
    return tf.keras.Model({"x": x}, KERAS.Dense(1, name="head")(hidden))


def in_batch_negatives(labels, predictions):
    unit = tf.tanh(predictions)
    scores = tf.nn.log_softmax(tf.matmul(unit, unit, transpose_b=True))
    return tf.square(predictions - labels)[:, 0] - tf.linalg.diag_part(scores)


def of_a_batch(labels, predictions):
    return tf.reduce_mean(tf.square(predictions - labels)) + tf.math.reduce_variance(predictions)


def label_share(labels):
    """Labels of which a batch has more weigh less."""
    same = tf.cast(tf.equal(labels[:, tf.newaxis], labels[tf.newaxis]), tf.float32)
    return 1.0 / tf.reduce_sum(same, -1)


AGAINST_MEAN = Metric("against_mean", lambda y, p: tf.abs((p - tf.reduce_mean(p)) - y))


class Centred(KERAS.Layer):
    """Batch statistics by another name, in training or always."""

    def __init__(self, always=True):
        super().__init__()
        self._always = always

    def call(self, inputs, training=None):
        return inputs - tf.reduce_mean(inputs, 0) if training or self._always else inputs


class Spread(KERAS.Layer):
    """Adds a loss of the whole batch."""

    def call(self, inputs):
        self.add_loss(tf.math.reduce_variance(inputs))
        return inputs


class NormOfEach(KERAS.Layer):
    """Adds a loss of each example."""

    def call(self, inputs):
        self.add_loss(tf.reduce_sum(tf.square(inputs), axis=1))
        return inputs


def build_with(layer=None):
    """Returns what builds a model with layers between its inputs and a local head."""

    def build():
        item = tf.keras.Input([], dtype=tf.int32, name="item")
        x = tf.keras.Input([2], name="x")
        table = KERAS.Embedding(NUM_ITEMS, 3, name="table")(item)
        hidden = KERAS.Dense(3, activation="tanh", name="shared")(x) + table
        hidden = KERAS.Dropout(0.3)(hidden)
        output = KERAS.Dense(1, name="own")(layer()(hidden) if layer else hidden)
        return tf.keras.Model({"item": item, "x": x}, output)

    return build


MIXING = {"local_layers": ["own"], "metrics": [MAE], "lookups": {"table": "item"}}
BUILD_SENTENCES = next_word_lstm(
    num_known=NUM_WORDS - 4, num_oov_buckets=4, embedding_dim=3, lstm_units=4, projection_dim=3
)
ITEMS = {"item_embedding": "item", "item_bias": "item"}
OWN_FACTORS = {"local_layers": ["user_embedding", "user_bias"], "metrics": [RMSE, MAE]}
USERS = {"lookups": {"item_embedding": "item", "user_embedding": "user"}}
SENTENCES = {
    "loss": sum_cross_entropy,
    "metrics": [token_accuracy("accuracy"), token_accuracy("known", num_known=NUM_WORDS - 4)],
    "lookups": {"known_embedding": "known_token", "oov_embedding": "oov_token"},
    "label_spec": tf.TensorSpec([None, None], tf.int32),
    "example_weight": count_tokens,
    "unit": "tokens",
    "sequence_length": lambda features, labels: count_tokens(labels),
}
CATEGORIES = {
    "loss": "sparse_categorical_crossentropy",
    "label_spec": tf.TensorSpec([None], tf.int32),
}
# What builds a Keras model, and options of the partitioned one.
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "factors": (BUILD_BIASED, {**OWN_FACTORS, "lookups": ITEMS}),
    "factors, no lookups": (BUILD_BIASED, OWN_FACTORS),
    "network": (
        build_factors(hidden_units=(3, 2)),
        {"local_layers": ["user_embedding"], "lookups": {"item_embedding": "item"}},
    ),
    "rated": (
        build_factors(rated_places=3, l2=0.1, user_initializer="uniform"),
        {
            "local_layers": ["user_embedding"],
            "lookups": {"item_embedding": "item", "rated_embedding": "rated"},
        },
    ),
    "owned users": (
        BUILD_USERS,
        {**USERS, "per_client_tables": ["user_embedding"]},
    ),
    "users": (BUILD_USERS, USERS),
    "classes": (build_classifier, {"local_layers": ["head"], **CATEGORIES}),
    "branching": (
        Branching,
        {"local_layers": ["last"], "input_spec": {"x": tf.TensorSpec([None, 2])}},
    ),
    "logarithm": (build_logarithm, {"local_layers": ["head"]}),
    "signs": (
        build_logarithm,
        {"loss": tf.keras.losses.BinaryCrossentropy(from_logits=True)},
    ),
    "words": (
        build_words,
        {"local_layers": ["dense"], "lookups": {"vectors": "words", "biases": "words"}},
    ),
    "own words": (
        build_words,
        {"local_layers": ["vectors", "biases"], "lookups": {"vectors": "words", "biases": "words"}},
    ),
    "own user": (
        build_users,
        {
            "local_layers": ["user_embedding"],
            "lookups": {"user_embedding": "nobody", "table": "item"},
        },
    ),
    "table": (build_table, {"lookups": {"table": "item"}}),
    "table, own head": (build_table, {"local_layers": ["own"], "lookups": {"table": "item"}}),
    "constrained": (build_constrained, {}),
    "constrained, own head": (build_constrained, {"local_layers": ["head"]}),
    "noisy": (build_noisy, {}),
    "noisy, own head": (build_noisy, {"local_layers": ["head"]}),
    "mixing layers": (
        build_with(lambda: tf.keras.Sequential([Centred(), Centred(always=False), Spread()])),
        MIXING,
    ),
    "mixing functions": (
        build_with(),
        {
            **MIXING,
            "loss": in_batch_negatives,
            "example_weight": label_share,
            "metrics": [AGAINST_MEAN, dataclasses.replace(MAE, example_weight=label_share)],
        },
    ),
    "loss of a batch": (build_with(), {**MIXING, "loss": of_a_batch}),
    "loss of each": (build_with(NormOfEach), {**MIXING, "local_layers": ["table"]}),
    "sentences": (
        BUILD_SENTENCES,
        {"local_layers": ["oov_embedding"], **SENTENCES, "chunk_places": 2 * TIME},
    ),
    "shared sentences": (BUILD_SENTENCES, SENTENCES),
}
BROKEN = dataclasses.replace(RATINGS, labels=RATINGS.labels.copy())
BROKEN.labels[4], BROKEN.labels[14] = np.nan, 1e30
SIGNS = dataclasses.replace(RATINGS, labels=(RATINGS.labels > 1.0).astype(np.float32))
DATA = {
    "classes": CLASSES,
    "mixing functions": SIGNS,
    "signs": SIGNS,
    "sentences": draw_sentences(),
    "shared sentences": draw_sentences(),
}

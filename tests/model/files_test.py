from __future__ import annotations

import json

import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.model.files import check_parts, describe_model

layers = tf.keras.layers


def dense(x):
    x = layers.Dense(3, activation="relu", kernel_regularizer="l2", bias_constraint="non_neg")(x)
    x = layers.Dense(3, activation=tf.nn.gelu, kernel_initializer="he_normal")(x)
    x = layers.UnitNormalization()(layers.LayerNormalization()(x))
    x = layers.Concatenate()([layers.LeakyReLU()(x), layers.PReLU()(x), layers.Dropout(0.1)(x)])
    return layers.Activation("swish")(layers.Normalization(mean=0.0, variance=1.0)(x))


def sequences(x):
    x = layers.Reshape([2, 2])(x)
    x = layers.Bidirectional(layers.LSTM(2, return_sequences=True))(x)
    x = layers.RNN([layers.GRUCell(3), layers.SimpleRNNCell(2)], return_sequences=True)(x)
    x = layers.MultiHeadAttention(2, 2)(x, x)
    x = layers.TimeDistributed(layers.Dense(2))(layers.Masking()(x))
    return layers.GlobalAveragePooling1D()(layers.Conv1D(2, 2, padding="same")(x))


def images(x):
    x = layers.Conv2D(2, 1)(layers.Reshape([2, 2, 1])(x))
    x = layers.SeparableConv2D(2, 1)(layers.Rescaling(0.5)(x))
    return layers.Flatten()(layers.MaxPooling2D(1)(layers.ZeroPadding2D(1)(x)))


def lookups(x):
    ids = tf.cast(x, tf.int32)
    found = layers.IntegerLookup(vocabulary=[1, 2, 3])(ids)
    words = layers.StringLookup(vocabulary=["a", "b"])(tf.strings.lower(tf.strings.as_string(ids)))
    return layers.Flatten()(layers.Embedding(5, 2)(tf.concat([found, words], axis=1)))


def operators(x):
    y = x * 2 + 1 - x / 3 - abs(-x) ** 2 + x // 2 + x % 2
    y = tf.where((y > 0) & ~(x < 1) | (x == 2), y, 1 - x)[..., :3]
    return tf.reshape(y, [tf.shape(y)[0], 3]) @ tf.ones([3, 1])


def operations(x):
    y = tf.nn.softmax(tf.transpose(tf.expand_dims(x, 1), [0, 2, 1]), axis=1)
    y = tf.squeeze(tf.pad(tf.tile(y, [1, 2, 1]), [[0, 0], [1, 1], [0, 0]]), -1)
    y = (
        tf.stack(tf.unstack(y, axis=1), axis=1)
        + tf.reduce_mean(tf.gather(x, [0], axis=1), 1)[:, None]
    )
    y = y[:, :, None] * tf.gather(tf.ones([4, 2]), tf.argmax(x, 1))[:, None]
    hidden = tf.math.l2_normalize(tf.stop_gradient(y), -1)
    return tf.clip_by_value(tf.reduce_sum(tf.zeros_like(hidden) + hidden, [1]), 0.0, 1.0)


@pytest.mark.parametrize("part", [dense, sequences, images, operators, operations])
def test_ordinary_models_are_described(part):
    def build():
        x = layers.Input([4], name="x")
        return tf.keras.Model(x, layers.Dense(1, name="own")(part(x)))

    loss, metrics = tf.keras.losses.Huber(), ["mae", tf.keras.metrics.MeanSquaredError()]
    model = fp.PartitionedModel(build, local_layers=["own"], loss=loss, metrics=metrics)
    assert describe_model(model) is not None


@pytest.mark.parametrize("part", [dense, sequences, images, operators, operations, lookups])
def test_so_are_models_that_were_built_outside_of_a_graph(part):
    """Keras describes the operations of these in another way."""
    x = layers.Input([4])
    check_parts({"keras": json.loads(tf.keras.Model(x, part(x)).to_json())})

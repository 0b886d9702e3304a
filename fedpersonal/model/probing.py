"""Random values and inputs, with which models are checked numerically."""

from __future__ import annotations

import math

import tensorflow as tf

from fedpersonal.model.partition import PartitionedModel, Values

# Tables may be huge: a few rows tell as much.
FEW_ROWS = 50


def random_values(model: PartitionedModel, *, seed: int = 0) -> Values:
    """Draws normal values of all variables, of tables a few rows only; needs a graph."""
    values = {}
    for i, v in enumerate(model.variables):
        shape = (FEW_ROWS, *v.shape[1:]) if v.name in model.tables else v.shape
        values[v.name] = tf.random.stateless_normal(shape, [seed, i], dtype=v.dtype)
    return values


def random_features(
    model: PartitionedModel, num_examples: int, *, seed: int = 0, places: int = 3
) -> Values:
    """Draws inputs (num_examples, ...), each unknown dimension of `places`; needs a graph.

    Looked-up ids are in the tables of `random_values`; other integers are 0 or 1, since nobody
    knows what else they may be; and other numbers positive, since logarithms are taken of them.
    """
    features = {}
    for name, spec in model.input_spec.items():
        shape = [num_examples] + [d or places for d in spec.shape[1:]]
        if name in model.tables.values():
            rows = min(v.shape[0] for v in model.variables if model.tables.get(v.name) == name)
            count = math.prod(shape)
            ids = tf.random.stateless_uniform(
                [count - 1], [seed, 1], 0, min(rows, FEW_ROWS), dtype=tf.int32
            )
            # An id of 0, which some models mask, where a count from 0 has another number.
            ids = tf.reshape(tf.concat([ids, [0]], 0), shape)
            features[name] = tf.cast(ids, spec.dtype)
        elif spec.dtype.is_floating:
            drawn = tf.random.stateless_normal(shape, [seed, 2], dtype=spec.dtype)
            features[name] = tf.abs(drawn)
        else:
            bits = tf.random.stateless_uniform(shape, [seed, 3], 0, 2, dtype=tf.int32)
            features[name] = tf.cast(bits, spec.dtype)
    return features

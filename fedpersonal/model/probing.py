"""Random values and inputs, with which models are checked numerically."""

from __future__ import annotations

import functools
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


def random_features(model: PartitionedModel, num_examples: int, *, seed: int = 0) -> Values:
    """Draws inputs (num_examples, ...), each unknown dimension 3; needs a graph.

    Looked-up ids are in the tables of `random_values`; other integers are 0 or 1, since nobody
    knows what else they may be.
    """
    features = {}
    for name, spec in model.input_spec.items():
        shape = [num_examples] + [d or 3 for d in spec.shape[1:]]
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
            features[name] = tf.random.stateless_normal(shape, [seed, 2], dtype=spec.dtype)
        else:
            bits = tf.random.stateless_uniform(shape, [seed, 3], 0, 2, dtype=tf.int32)
            features[name] = tf.cast(bits, spec.dtype)
    return features


@functools.lru_cache(maxsize=8)  # Building a model takes long; each evaluation asks.
def check_rows_are_independent(model: PartitionedModel) -> None:
    """Checks numerically that an example's output does not depend on its neighbours in a batch.

    Raises:
        ValueError: If it does: clients' examples must not be pooled then.
    """

    @tf.function(autograph=False)
    def both_ways():
        values, features = random_values(model), random_features(model, 3)
        any_rows = tf.TensorSpec([None], tf.int32)

        @tf.function(autograph=False, input_signature=[any_rows])  # The model is built once.
        def output(rows):
            chosen = {k: tf.gather(v, rows) for k, v in features.items()}
            return model.predict(values, chosen, training=False)[0]

        return output([0, 1, 2]), tf.concat([output([i]) for i in range(3)], axis=0)

    together, alone = (t.numpy() for t in both_ways())
    if together.shape != alone.shape or abs(together - alone).max() > 1e-3 * (1 + abs(alone).max()):
        raise ValueError(
            "pooled packing puts examples of several clients in one batch, but this model's output "
            "for an example depends on the others of its batch. Use packing='stacked'."
        )


def adds_losses_of_batches(model: PartitionedModel) -> bool:
    """Tells whether a model adds a loss that is not one value an example."""
    ranks: list[int] = []

    @tf.function(autograph=False)
    def trace():
        features = random_features(model, 2)
        _, added = model.predict(random_values(model), features, training=True)
        ranks.extend(loss.shape.rank for loss in added)

    trace.get_concrete_function()
    return any(rank != 1 for rank in ranks)

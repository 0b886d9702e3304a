"""Lookup tables, reduced to the rows in use.

A table that is only ever looked up by one input can be replaced, for a batch, by the rows that the
batch's ids select, with ids that count 0, 1, 2, ...: predictions, losses and gradients are those of
the whole table, whatever the model does with them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from fedpersonal.model.keras import keras

if TYPE_CHECKING:
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


def fetch_rows(
    model: PartitionedModel,
    shared: Mapping[str, tf.Tensor],
    own: Mapping[str, tf.Tensor],
    features: Mapping[str, tf.Tensor],
    positions: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
    """Fetches the row of every id of each looked-up input: table's variable name to (C, T, ...).

    Args:
        model: The partitioned model.
        shared: Table's variable name to the whole table, (rows, ...).
        own: Table's variable name to each client's touched rows, (C, R, ...), where it has some.
        features: Input name to ids of shape (C, ...), of `T` ids a client.
        positions: Table's variable name to where those ids stand among the touched rows, (C, ...).
    """
    rows = {}
    for name, feature in model.tables.items():
        flat = [tf.shape(features[feature])[0], -1]
        if name in own:
            rows[name] = tf.gather(own[name], tf.reshape(positions[name], flat), batch_dims=1)
        else:
            rows[name] = tf.gather(shared[name], tf.reshape(features[feature], flat))
    return rows


def count_ids(model: PartitionedModel, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns what stands in for each looked-up input of shape (C, ...): ids from 0, (1, ...)."""
    counted = {}
    for feature in set(model.tables.values()):
        ids = features[feature]
        shape = ids.shape[1:] if ids.shape[1:].is_fully_defined() else tf.shape(ids)[1:]
        count = tf.reduce_prod(tf.convert_to_tensor(shape))
        counting = tf.reshape(tf.range(count, dtype=tf.int32), shape)
        counted[feature] = tf.cast(counting, ids.dtype)[tf.newaxis]
    return counted


def check_lookups(model: PartitionedModel) -> None:
    """Checks numerically that rows in use, with ids that count, give what whole tables give.

    Raises:
        ValueError: If they do not: something else sees the ids or the whole table.
    """
    if not model.tables:
        return

    @tf.function(autograph=False)
    def both_ways():
        values = random_values(model)
        features = {k: v[tf.newaxis] for k, v in random_features(model, 3).items()}
        rows = {k: v[0] for k, v in fetch_rows(model, values, {}, features, {}).items()}
        counted = {**features, **count_ids(model, features)}

        def everything(values, features, rows_in_order=False):
            features = {k: v[0] for k, v in features.items()}
            output, added = model.predict(
                values, features, training=False, rows_in_order=rows_in_order
            )
            return tf.concat([tf.reshape(t, [-1]) for t in (output, *added)], axis=0)

        return everything(values, features), everything({**values, **rows}, counted, True)

    try:
        whole, reduced = (t.numpy() for t in both_ways())
        is_equal = np.allclose(whole, reduced, rtol=1e-4, atol=1e-4, equal_nan=True)
    except tf.errors.InvalidArgumentError:  # A counted id where a table has no such row.
        is_equal = False
    if not is_equal:
        raise ValueError(
            f"lookups {model.lookups} change the model's output or its losses: its layers see more "
            "of the ids or of the tables than the rows looked up (as mask_zero, a regularizer of "
            "the embeddings, or a second use of the input do). Leave these layers out. With a "
            "table of users this also breaks the split-personalization constraint (FURL, section "
            "3.2): the loss of one user must not depend on the embeddings of others."
        )


def skip_lookups(model: keras.Model, names: Container[str]) -> None:
    """Has a model's embeddings of these names return their tables, where that is the same.

    It is where they look an input of the model up as it is; others are left alone.
    """
    inputs = {id(tensor) for tensor in tf.nest.flatten(getattr(model, "inputs", None))}
    for layer in model.layers:
        if (
            layer.name in names
            and type(layer) is keras.layers.Embedding
            and not layer.mask_zero
            and layer.compute_dtype == layer.variable_dtype
            and len(layer.inbound_nodes) == 1
            and id(layer.input) in inputs
        ):
            layer.call = functools.partial(_all_rows, layer)


@tf.autograph.experimental.do_not_convert  # Nothing in it branches on tensors.
def _all_rows(layer: keras.layers.Embedding, ids: tf.Tensor) -> tf.Tensor:
    rows = tf.convert_to_tensor(layer.embeddings)
    if ids.shape.rank == 1:
        return tf.ensure_shape(rows, [ids.shape[0], layer.output_dim])
    return tf.reshape(rows, tf.concat([tf.shape(ids), [layer.output_dim]], 0))

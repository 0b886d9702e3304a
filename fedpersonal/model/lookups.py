"""Lookup tables, reduced to the rows in use.

If a table is only looked up, and by one input, a batch needs only the rows that its ids select,
with consecutive ids 0, 1, 2, ... in their place. Predictions, losses and gradients equal those with
the whole table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from fedpersonal.model.partition import PartitionedModel, Values

# Number of rows for checks, which whole tables, often huge, would not make stricter.
FEW_ROWS = 50


def random_values(model: PartitionedModel, *, seed: int = 0) -> Values:
    """Samples normal values of all variables, with few rows of each table; requires a graph."""
    values = {}
    for i, v in enumerate(model.variables):
        shape = (FEW_ROWS, *v.shape[1:]) if v.name in model.tables else v.shape
        values[v.name] = tf.random.stateless_normal(shape, [seed, i], dtype=v.dtype)
    return values


def random_features(
    model: PartitionedModel, num_examples: int, *, seed: int = 0, places: int = 3
) -> Values:
    """Samples inputs (num_examples, ...), with unknown dimensions of `places`; requires a graph.

    Looked-up ids are in the range of `random_values`' tables. Other integers are 0 or 1, since
    their range is unknown. Other numbers are positive, since models may take their logarithms.
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
            # The last id is 0, which models may mask; consecutive ids have another number there.
            ids = tf.reshape(tf.concat([ids, [0]], 0), shape)
            features[name] = tf.cast(ids, spec.dtype)
        elif spec.dtype.is_floating:
            normal = tf.random.stateless_normal(shape, [seed, 2], dtype=spec.dtype)
            features[name] = tf.abs(normal)
        else:
            bits = tf.random.stateless_uniform(shape, [seed, 3], 0, 2, dtype=tf.int32)
            features[name] = tf.cast(bits, spec.dtype)
    return features


def fetch_rows(
    model: PartitionedModel,
    shared: Mapping[str, tf.Tensor],
    per_client: Mapping[str, tf.Tensor],
    features: Mapping[str, tf.Tensor],
    positions: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
    """Fetches the row of every id of each looked-up input: table's variable name to (C, T, ...).

    Args:
        model: The partitioned model.
        shared: Table's variable name to the whole table, (rows, ...).
        per_client: Table's variable name to each client's touched rows, (C, R, ...), for tables
            that clients have rows of.
        features: Input name to ids of shape (C, ...), with `T` ids per client.
        positions: Table's variable name to the positions of the ids among the touched rows,
            (C, ...).
    """
    rows = {}
    for name, feature in model.tables.items():
        flat = [tf.shape(features[feature])[0], -1]
        if name in per_client:
            rows[name] = tf.gather(
                per_client[name], tf.reshape(positions[name], flat), batch_dims=1
            )
        else:
            rows[name] = tf.gather(shared[name], tf.reshape(features[feature], flat))
    return rows


def count_ids(model: PartitionedModel, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns consecutive ids from 0, (1, ...), for each looked-up input of shape (C, ...)."""
    counted = {}
    for feature in set(model.tables.values()):
        ids = features[feature]
        shape = ids.shape[1:] if ids.shape[1:].is_fully_defined() else tf.shape(ids)[1:]
        count = tf.reduce_prod(tf.convert_to_tensor(shape))
        counting = tf.reshape(tf.range(count, dtype=tf.int32), shape)
        counted[feature] = tf.cast(counting, ids.dtype)[tf.newaxis]
    return counted


def check_lookups(model: PartitionedModel) -> None:
    """Checks numerically that rows in use with consecutive ids give the results of whole tables.

    Raises:
        ValueError: If they do not, since the model uses the ids or the whole table otherwise.
    """
    if not model.tables:
        return

    @tf.function(autograph=False)
    def both_ways():
        values = random_values(model)
        features = {k: v[tf.newaxis] for k, v in random_features(model, 3).items()}
        rows = {k: v[0] for k, v in fetch_rows(model, values, {}, features, {}).items()}
        counted = {**features, **count_ids(model, features)}

        def results(values, features, rows_in_order=False):
            features = {k: v[0] for k, v in features.items()}
            output, added = model.predict(
                values, features, training=False, rows_in_order=rows_in_order
            )
            return tf.concat([tf.reshape(t, [-1]) for t in (output, *added)], axis=0)

        return results(values, features), results({**values, **rows}, counted, True)

    try:
        whole, reduced = (t.numpy() for t in both_ways())
        is_equal = np.allclose(whole, reduced, rtol=1e-4, atol=1e-4, equal_nan=True)
    except tf.errors.InvalidArgumentError:  # A consecutive id exceeds another table's rows.
        is_equal = False
    if not is_equal:
        raise ValueError(
            f"lookups {model.lookups} change the model's output or its losses: its layers use the "
            "ids or the tables for more than looking up rows (such as mask_zero, a regularizer of "
            "the embeddings, or a second use of the input). Leave these layers out of lookups. "
            "With a table of users this also breaks the split-personalization constraint (FURL, "
            "section 3.2): the loss of one user must not depend on the embeddings of others."
        )

"""Lookup tables, reduced to the rows in use.

A table that is only ever looked up by one input can be replaced, for a batch, by the rows that the
batch's ids select, with ids that count 0, 1, 2, ...: predictions, losses and gradients are those of
the whole table, whatever the model does with them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.probing import random_features, random_values


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

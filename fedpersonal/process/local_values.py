"""What clients have kept, on its way to CLIENTS and back."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.client.values import Kept
from fedpersonal.model.partition import PartitionedModel, Values


def local_type(model: PartitionedModel, *, clients_per_shard: int) -> tff.StructWithPythonType:
    """Returns the TFF type of the local state of a shard's clients.

    Its fields: `places`, int32 (C,), which client of the cohort each is, -1 for none; `known`, bool
    (C,), whether it has kept anything; `values`, local variable's name to (C, ...).
    """
    room = clients_per_shard
    values = [
        (v.name, tff.TensorType(v.dtype.as_numpy_dtype, [room, *v.shape]))
        for v in model.local_variables
    ]
    fields = collections.OrderedDict(
        places=tff.TensorType(np.int32, [room]),
        known=tff.TensorType(np.bool_, [room]),
        values=collections.OrderedDict(values),
    )
    return tff.to_type(fields)


def local_of(
    places: np.ndarray, *, known: np.ndarray, values: Mapping[str, np.ndarray]
) -> collections.OrderedDict:
    """Chooses the local state of a shard's clients, of `local_type`, out of a whole cohort's.

    `places` is int32 (C,), -1 for none; `known` is bool (cohort,), values are (cohort, ...).
    """
    places = np.asarray(places, np.int32)
    is_client = places >= 0
    if not is_client.any():  # Of an empty cohort there is nothing to choose from.
        known = np.zeros(1, bool)
        values = {name: np.zeros((1, *v.shape[1:]), v.dtype) for name, v in values.items()}
    at = np.where(is_client, places, 0)
    return collections.OrderedDict(
        places=places,
        known=known[at] & is_client,
        values=collections.OrderedDict((name, column[at]) for name, column in values.items()),
    )


def as_kept(local: Mapping[str, Any]) -> Kept:
    """Turns a value of `local_type` into `Kept`, inside a TFF computation."""
    return Kept(local["known"], dict(local["values"]))


def kept_now(
    model: PartitionedModel, local: Mapping[str, Any], local_values: Values
) -> collections.OrderedDict:
    """Returns the value of `local_type` after a round, of what came in and what is kept now."""
    values = collections.OrderedDict(
        (v.name, tf.ensure_shape(local_values[v.name], local["values"][v.name].shape))
        for v in model.local_variables
    )
    known = tf.ones_like(local["known"])
    return collections.OrderedDict(places=local["places"], known=known, values=values)

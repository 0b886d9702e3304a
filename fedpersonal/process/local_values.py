"""What clients have kept, on its way to CLIENTS and back."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_federated as tff

from fedpersonal.client.values import Kept
from fedpersonal.model.partition import PartitionedModel


def private_type(model: PartitionedModel, *, clients: int) -> tff.StructWithPythonType:
    """Returns the TFF type of what the clients of a member have kept.

    Its fields: `places`, int32 (C,), which client of the cohort each is, -1 for none; `known`, bool
    (C,), whether it has kept anything; `values`, local variable's name to (C, ...).

    Args:
        model: The partitioned model.
        clients: Clients a member, C.
    """
    values = collections.OrderedDict(
        (v.name, tff.TensorType(v.dtype.as_numpy_dtype, [clients, *v.shape]))
        for v in model.local_variables
    )
    return tff.to_type(
        collections.OrderedDict(
            places=tff.TensorType(np.int32, [clients]),
            known=tff.TensorType(np.bool_, [clients]),
            values=values,
        )
    )


def as_kept(private: Mapping[str, Any]) -> Kept:
    """Turns a value of `private_type` into `Kept`, inside a TFF computation."""
    return Kept(private["known"], dict(private["values"]))


def private_of(
    places: np.ndarray, *, known: np.ndarray, values: Mapping[str, np.ndarray]
) -> collections.OrderedDict:
    """Chooses what the clients of a member have kept, of what all of a cohort have.

    Args:
        places: int32 (C,), which client of the cohort each is, -1 for none.
        known: bool (cohort,).
        values: Local variable's name to (cohort, ...).

    Returns:
        A value of `private_type`.
    """
    places = np.asarray(places, np.int32)
    is_client = places >= 0
    at = np.where(is_client, places, 0)
    return collections.OrderedDict(
        places=places,
        known=known[at] & is_client,
        values=collections.OrderedDict((name, column[at]) for name, column in values.items()),
    )

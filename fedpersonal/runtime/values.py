"""Values of TFF types inside this process.

| TFF type | here |
| --- | --- |
| tensor | an array |
| struct | a list, in the type's order |
| at SERVER | the value itself |
| at CLIENTS | a `Shards`, or an `AllEqual` of the one value that all have |
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.runtime.graphs import unsupported


class Shards(list):
    """A value at CLIENTS: one for each shard of a cohort, which is a client to TFF."""


@dataclasses.dataclass(frozen=True)
class AllEqual:
    """A value at CLIENTS that all shards have."""

    value: Any

    def of(self, num_shards: int) -> Shards:
        """Returns it as one for each shard."""
        return Shards([self.value] * num_shards)


def ingest(value: Any, type_spec: tff.Type) -> Any:
    """Turns a Python value that a computation was called with into one of this module.

    Raises:
        TypeError: If it does not fit the type.
    """
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is tff.CLIENTS:
            if type_spec.all_equal:
                return AllEqual(ingest(value, type_spec.member))
            return Shards(ingest(shard, type_spec.member) for shard in value)
        return ingest(value, type_spec.member)
    if isinstance(type_spec, tff.StructType):
        elements = list(tff.iter_elements(type_spec))
        parts = _parts(value, [name for name, _ in elements])
        if len(parts) != len(elements):
            raise TypeError(f"expected {len(elements)} elements of {type_spec}, not {len(parts)}.")
        return [ingest(part, element) for part, (_, element) in zip(parts, elements)]
    if isinstance(type_spec, tff.SequenceType):
        raise unsupported("A computation takes a tf.data.Dataset")
    return _array(value, type_spec)


def deliver(value: Any, type_spec: tff.Type) -> Any:
    """Turns a value of this module into what TFF's own contexts return for its type."""
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is tff.CLIENTS and not type_spec.all_equal:
            return [deliver(shard, type_spec.member) for shard in value]
        return deliver(value.value if isinstance(value, AllEqual) else value, type_spec.member)
    if isinstance(type_spec, tff.StructType):
        elements = list(tff.iter_elements(type_spec))
        parts = [deliver(part, element) for part, (_, element) in zip(value, elements)]
        return _contained(parts, [name for name, _ in elements], type_spec)
    if isinstance(value, bytes):
        return value
    array = np.asarray(value)
    return array if array.ndim else array[()]


def _contained(parts: list[Any], names: list[str | None], type_spec: tff.StructType) -> Any:
    """Returns a struct's parts in its type's container."""
    container = type_spec.python_container
    if all(names) and issubclass(container or collections.OrderedDict, dict):
        return (container or collections.OrderedDict)(zip(names, parts))
    if all(names) and (hasattr(container, "_fields") or attrs.has(container)):
        return container(**dict(zip(names, parts)))
    # TFF's own function takes longer, and knows what is refused.
    struct = tff.Structure(zip(names, parts))
    return tff.type_to_py_container(struct, type_spec)


def num_shards(value: Any, type_spec: tff.Type) -> int | None:
    """Returns how many values at CLIENTS a computation's argument has; None where it does not say.

    Raises:
        ValueError: If its parts disagree.
    """
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is not tff.CLIENTS or type_spec.all_equal:
            return None
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"expected a list with a value a client, not {type(value).__name__}.")
        return len(value)
    if not isinstance(type_spec, tff.StructType):
        return None
    elements = list(tff.iter_elements(type_spec))
    parts = _parts(value, [name for name, _ in elements])
    found = (num_shards(part, element) for part, (_, element) in zip(parts, elements))
    counts = {count for count in found if count is not None}
    if len(counts) > 1:
        raise ValueError(f"arguments must have equally many clients, not {sorted(counts)}.")
    return counts.pop() if counts else None


def _parts(value: Any, names: Sequence[str | None]) -> list[Any]:
    """Returns a container's elements in the order of names."""
    if isinstance(value, tff.Structure):
        return list(value)
    if isinstance(value, Mapping):
        if set(value) != set(names):
            raise TypeError(f"expected elements {list(names)}, not {list(value)}.")
        return [value[name] for name in names]
    if isinstance(value, (list, tuple)):
        return list(value)
    if all(names):  # A dataclass, or of attrs.
        return [getattr(value, str(name)) for name in names]
    raise TypeError(f"expected a structure of {len(names)} elements, not {type(value).__name__}.")


def _array(value: Any, type_spec: tff.TensorType) -> np.ndarray:
    dtype = tf.as_dtype(type_spec.dtype)
    array = np.asarray(value)  # Of a variable or a tensor, too.
    if isinstance(value, (bool, int, float, complex, list, tuple)):
        array = _of_python(array, dtype)
    is_text = dtype == tf.string and array.dtype.kind in "OSU"
    if not is_text and array.dtype != dtype.as_numpy_dtype:
        raise TypeError(f"expected {type_spec}, not {array.dtype}{list(array.shape)}.")
    shape = type_spec.shape
    if shape is not None and (
        len(shape) != array.ndim
        or any(size not in (None, length) for size, length in zip(shape, array.shape))
    ):
        raise TypeError(f"expected {type_spec}, not {array.dtype}{list(array.shape)}.")
    return array


def _of_python(array: np.ndarray, dtype: tf.DType) -> np.ndarray:
    """Gives an array of Python numbers the dtype asked for, if they fit."""
    if dtype == tf.string or array.dtype == dtype.as_numpy_dtype:
        return array
    if array.size and not np.can_cast(array.dtype, dtype.as_numpy_dtype, "same_kind"):
        return array
    cast = array.astype(dtype.as_numpy_dtype)
    return array if dtype.is_integer and not np.array_equal(cast, array) else cast

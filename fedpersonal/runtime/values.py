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
import functools
from collections.abc import Callable, Mapping, Sequence
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


def ingester(type_spec: tff.Type) -> Callable[[Any], Any]:
    """Returns what turns Python values of a type into those of this module.

    It raises a TypeError where a value does not fit the type.
    """
    if isinstance(type_spec, tff.FederatedType):
        member = ingester(type_spec.member)
        if type_spec.placement is not tff.CLIENTS:
            return member
        if type_spec.all_equal:
            return lambda value: AllEqual(member(value))
        return lambda value: Shards(map(member, value))
    if isinstance(type_spec, tff.SequenceType):
        raise unsupported("A computation takes a tf.data.Dataset")
    if not isinstance(type_spec, tff.StructType):
        return functools.partial(_array, type_spec, tf.as_dtype(type_spec.dtype))
    names, members = _elements(type_spec, ingester)

    def ingest(value: Any) -> list[Any]:
        parts = _parts(value, names)
        if len(parts) != len(members):
            raise TypeError(f"expected {len(members)} elements of {type_spec}, not {len(parts)}.")
        return [member(part) for member, part in zip(members, parts)]

    return ingest


def deliverer(type_spec: tff.Type) -> Callable[[Any], Any]:
    """Returns what turns values of this module into what TFF's own contexts return for a type."""
    if isinstance(type_spec, tff.FederatedType):
        member = deliverer(type_spec.member)
        if type_spec.placement is tff.CLIENTS and not type_spec.all_equal:
            return lambda value: list(map(member, value))
        return lambda value: member(value.value if isinstance(value, AllEqual) else value)
    if not isinstance(type_spec, tff.StructType):
        return _delivered
    names, members = _elements(type_spec, deliverer)
    contain = _container(names, type_spec)
    return lambda value: contain([member(part) for member, part in zip(members, value)])


def _elements(
    type_spec: tff.StructType, of: Callable[[tff.Type], Callable[[Any], Any]]
) -> tuple[list[str | None], list[Callable[[Any], Any]]]:
    """Returns the names of a struct's elements, and what `of` returns for their types."""
    elements = list(tff.iter_elements(type_spec))
    return [name for name, _ in elements], [of(element) for _, element in elements]


def _delivered(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    array = np.asarray(value)
    return array if array.ndim else array[()]


def _container(
    names: Sequence[str | None], type_spec: tff.StructType
) -> Callable[[list[Any]], Any]:
    """Returns what puts a struct's parts into its type's container."""
    container = type_spec.python_container
    if all(names) and issubclass(container or collections.OrderedDict, dict):
        return lambda parts: (container or collections.OrderedDict)(zip(names, parts))
    if all(names) and (hasattr(container, "_fields") or attrs.has(container)):
        return lambda parts: container(**dict(zip(names, parts)))
    # TFF's own function takes longer, and knows what is refused.
    return lambda parts: tff.type_to_py_container(tff.Structure(zip(names, parts)), type_spec)


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


def _array(type_spec: tff.TensorType, dtype: tf.DType, value: Any) -> np.ndarray:
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

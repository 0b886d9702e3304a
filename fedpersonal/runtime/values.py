"""Values of TFF types inside this process.

| TFF type | value |
| --- | --- |
| tensor | an array |
| struct | a list, in the type's order |
| at SERVER | the value itself |
| at CLIENTS | a `Shards`, or an `AllEqual` of the value that all shards have |
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
    """A value at CLIENTS: one for each shard of a cohort, which is a client for TFF."""


@dataclasses.dataclass(frozen=True)
class AllEqual:
    """A value at CLIENTS that all shards have."""

    value: Any

    def to_shards(self, num_shards: int) -> Shards:
        """Returns the value for each shard."""
        return Shards([self.value] * num_shards)


def build_ingester(type_spec: tff.Type) -> Callable[[Any], Any]:
    """Returns a function that converts Python values of a type to values of this module.

    The function raises a TypeError if a value does not match the type.
    """
    if isinstance(type_spec, tff.FederatedType):
        member = build_ingester(type_spec.member)
        if type_spec.placement is not tff.CLIENTS:
            return member
        if type_spec.all_equal:
            return lambda value: AllEqual(member(value))
        return lambda value: Shards(map(member, value))
    if isinstance(type_spec, tff.SequenceType):
        raise unsupported("A computation takes a tf.data.Dataset")
    if not isinstance(type_spec, tff.StructType):
        return functools.partial(_array, type_spec, tf.as_dtype(type_spec.dtype))
    names, members = _elements(type_spec, build_ingester)

    def ingest(value: Any) -> list[Any]:
        parts = _parts(value, names)
        if len(parts) != len(members):
            raise TypeError(f"expected {len(members)} elements of {type_spec}, not {len(parts)}.")
        return [member(part) for member, part in zip(members, parts)]

    return ingest


def build_deliverer(type_spec: tff.Type) -> Callable[[Any], Any]:
    """Returns a function that converts values of this module to the results of TFF's contexts."""
    if isinstance(type_spec, tff.FederatedType):
        member = build_deliverer(type_spec.member)
        if type_spec.placement is tff.CLIENTS and not type_spec.all_equal:
            return lambda value: list(map(member, value))
        return lambda value: member(value.value if isinstance(value, AllEqual) else value)
    if not isinstance(type_spec, tff.StructType):
        return _deliver_tensor
    names, members = _elements(type_spec, build_deliverer)
    pack = _container_packer(names, type_spec)
    return lambda value: pack([member(part) for member, part in zip(members, value)])


def _elements(
    type_spec: tff.StructType, build: Callable[[tff.Type], Callable[[Any], Any]]
) -> tuple[list[str | None], list[Callable[[Any], Any]]]:
    """Returns the names of a struct's elements, and the results of `build` for their types."""
    elements = list(tff.iter_elements(type_spec))
    return [name for name, _ in elements], [build(element) for _, element in elements]


def _deliver_tensor(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    array = np.asarray(value)
    return array if array.ndim else array[()]


def _container_packer(
    names: Sequence[str | None], type_spec: tff.StructType
) -> Callable[[list[Any]], Any]:
    """Returns a function that puts a struct's parts into its type's container."""
    container = type_spec.python_container
    if all(names) and issubclass(container or collections.OrderedDict, dict):
        return lambda parts: (container or collections.OrderedDict)(zip(names, parts))
    if all(names) and (hasattr(container, "_fields") or attrs.has(container)):
        return lambda parts: container(**dict(zip(names, parts)))
    # TFF's function takes longer, and raises the errors.
    return lambda parts: tff.type_to_py_container(tff.Structure(zip(names, parts)), type_spec)


def num_shards(value: Any, type_spec: tff.Type) -> int | None:
    """Returns the number of values at CLIENTS of an argument; None if it has no such values.

    Raises:
        ValueError: If parts of the argument have different numbers.
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
    sizes = (num_shards(part, element) for part, (_, element) in zip(parts, elements))
    counts = {count for count in sizes if count is not None}
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
    if all(names):  # An instance of a dataclass or of an attrs class.
        return [getattr(value, str(name)) for name in names]
    raise TypeError(f"expected a structure of {len(names)} elements, not {type(value).__name__}.")


def _array(type_spec: tff.TensorType, dtype: tf.DType, value: Any) -> np.ndarray:
    array = np.asarray(value)  # A variable or a tensor, too.
    if isinstance(value, (bool, int, float, complex, list, tuple)):
        array = _convert_python_numbers(array, dtype)
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


def _convert_python_numbers(array: np.ndarray, dtype: tf.DType) -> np.ndarray:
    """Converts an array of Python numbers to a dtype, if the numbers fit."""
    if dtype == tf.string or array.dtype == dtype.as_numpy_dtype:
        return array
    if array.size and not np.can_cast(array.dtype, dtype.as_numpy_dtype, "same_kind"):
        return array
    cast = array.astype(dtype.as_numpy_dtype)
    return array if dtype.is_integer and not np.array_equal(cast, array) else cast

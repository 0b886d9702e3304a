"""Values of TFF types inside this process.

| TFF type | here |
| --- | --- |
| tensor | an array, or a `tf.Tensor` |
| sequence | a dataset's variant, a `tf.Tensor` |
| struct | a list, in the type's order |
| at SERVER | the value itself |
| at CLIENTS | a `Members`, or an `AllEqual` of the one value that all have |
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


class Members(list):
    """A value at CLIENTS: one for each member."""


@dataclasses.dataclass(frozen=True)
class AllEqual:
    """A value at CLIENTS that all members have."""

    value: Any

    def of(self, num_members: int) -> Members:
        """Returns it as one for each member."""
        return Members([self.value] * num_members)


def ingest(value: Any, type_spec: tff.Type) -> Any:
    """Turns a Python value that a computation was called with into one of this module.

    Raises:
        TypeError: If it does not fit the type.
    """
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is tff.CLIENTS:
            if type_spec.all_equal:
                return AllEqual(ingest(value, type_spec.member))
            return Members(ingest(member, type_spec.member) for member in value)
        return ingest(value, type_spec.member)
    if isinstance(type_spec, tff.StructType):
        elements = list(tff.structure.iter_elements(type_spec))
        parts = _parts(value, [name for name, _ in elements])
        if len(parts) != len(elements):
            raise TypeError(f"expected {len(elements)} elements of {type_spec}, not {len(parts)}.")
        return [ingest(part, element) for part, (_, element) in zip(parts, elements)]
    if isinstance(type_spec, tff.SequenceType):
        return _sequence(value, type_spec)
    return _array(value, type_spec)


def deliver(value: Any, type_spec: tff.Type) -> Any:
    """Turns a value of this module into what TFF's own contexts return for its type."""
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is tff.CLIENTS and not type_spec.all_equal:
            return [deliver(member, type_spec.member) for member in value]
        return deliver(value.value if isinstance(value, AllEqual) else value, type_spec.member)
    if isinstance(type_spec, tff.StructType):
        elements = list(tff.structure.iter_elements(type_spec))
        parts = [deliver(part, element) for part, (_, element) in zip(value, elements)]
        return _contained(parts, [name for name, _ in elements], type_spec)
    if isinstance(type_spec, tff.SequenceType):
        specs = tff.types.type_to_tf_tensor_specs(type_spec.element)
        return tf.data.experimental.from_variant(value, specs)
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
    struct = tff.structure.Struct(zip(names, parts))
    return tff.types.type_to_py_container(struct, type_spec)


def num_members(value: Any, type_spec: tff.Type) -> int | None:
    """Returns how many CLIENTS members a computation's argument has; None where it does not say.

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
    elements = list(tff.structure.iter_elements(type_spec))
    parts = _parts(value, [name for name, _ in elements])
    found = (num_members(part, element) for part, (_, element) in zip(parts, elements))
    counts = {count for count in found if count is not None}
    if len(counts) > 1:
        raise ValueError(f"arguments must have equally many clients, not {sorted(counts)}.")
    return counts.pop() if counts else None


def _parts(value: Any, names: Sequence[str | None]) -> list[Any]:
    """Returns a container's elements in the order of names."""
    if isinstance(value, tff.structure.Struct):
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


def _sequence(value: Any, type_spec: tff.SequenceType) -> tf.Tensor:
    """Returns the variant of a dataset, or of a list of its elements."""
    spec = tff.types.type_to_tf_tensor_specs(type_spec.element)
    if isinstance(value, (list, tuple)):
        value = _dataset(value, type_spec.element, spec)
    if not isinstance(value, tf.data.Dataset):
        raise TypeError(
            f"expected a tf.data.Dataset or a list for {type_spec}, not {type(value).__name__}."
        )
    given = tff.SequenceType(tff.types.tensorflow_to_type(value.element_spec))
    if not type_spec.is_assignable_from(given):
        raise TypeError(f"expected a dataset of {type_spec}, not of {given}.")
    return tf.data.experimental.to_variant(value)


def _dataset(elements: Sequence[Any], element_type: tff.Type, spec: Any) -> tf.data.Dataset:
    """Returns a dataset of elements, whose shapes may differ: of a last, smaller batch say."""
    flat_specs = tf.nest.flatten(spec)
    rows = [tf.nest.flatten(_nested(ingest(e, element_type), spec)) for e in elements]
    datasets = [
        tf.data.Dataset.from_tensor_slices(tuple(map(np.stack, zip(*group))))
        for _, group in itertools.groupby(rows, key=lambda row: [a.shape for a in row])
    ]
    if not datasets:
        shapes = [[0, *(size or 0 for size in s.shape)] for s in flat_specs]
        nothing = (np.zeros(shape, s.dtype.as_numpy_dtype) for shape, s in zip(shapes, flat_specs))
        datasets = [tf.data.Dataset.from_tensor_slices(tuple(nothing))]
    whole = datasets[0].map(lambda *row: _shaped(row, flat_specs, spec))
    for dataset in datasets[1:]:
        whole = whole.concatenate(dataset.map(lambda *row: _shaped(row, flat_specs, spec)))
    return whole


def _nested(value: Any, spec: Any) -> Any:
    """Gives a struct's list the containers of a spec."""
    return tf.nest.pack_sequence_as(spec, _in_nest_order(value, spec))


def _in_nest_order(value: Any, spec: Any) -> list[np.ndarray]:
    """Flattens a struct's list as `tf.nest` does its container: mappings by sorted name."""
    if not tf.nest.is_nested(spec):
        return [value]
    if isinstance(spec, Mapping):
        by_name = dict(zip(spec, value))
        return [leaf for k in sorted(spec) for leaf in _in_nest_order(by_name[k], spec[k])]
    return [leaf for part, s in zip(value, spec) for leaf in _in_nest_order(part, s)]


def _shaped(row: Sequence[tf.Tensor], flat_specs: Sequence[tf.TensorSpec], spec: Any) -> Any:
    """Gives tensors the shapes, in part unknown, and the containers of a spec."""
    shaped = [tf.compat.v1.placeholder_with_default(t, s.shape) for t, s in zip(row, flat_specs)]
    return tf.nest.pack_sequence_as(spec, shaped)

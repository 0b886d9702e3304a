"""TensorFlow code as a computation: a graph with the names of its inputs and outputs."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedpersonal.tff import language
from fedpersonal.tff.language import Binding


def tf_computation(*types: Any) -> Callable[[Callable[..., Any]], language.Computation]:
    """Decorates TensorFlow code as a computation of arguments of the given types.

    The code is traced once. It takes a value for each type, in the type's containers, such as
    dictionaries and named tuples of tensors and datasets. It returns such values, too.

    Args:
        *types: Types, or values that `to_type` converts to types.

    Returns:
        The decorator. Without types the computation has no argument. With one type it has one
        argument; with several, its argument is a struct of them.
    """
    argument_types = [language.to_type(t) for t in types]
    # Arguments are identified by their positions.
    is_struct = len(argument_types) > 1
    if is_struct:
        parameter_type = language.StructWithPythonType(argument_types, tuple)
    else:
        parameter_type = argument_types[0] if argument_types else None

    def decorate(fn: Callable[..., Any]) -> language.Computation:
        with tf.Graph().as_default() as graph:
            arguments = [_placeholders(t) for t in argument_types]
            result = fn(*(value for value, _ in arguments))
            if graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES):
                raise ValueError("TensorFlow code of a computation makes no variables.")
            result_type, fetched = _capture(result)
        bindings = [binding for _, binding in arguments]
        message = language.TensorFlowProto(
            parameter=_struct(bindings) if is_struct else (bindings or [None])[0], result=fetched
        )
        message.graph_def.Pack(graph.as_graph_def())
        type_spec = language.FunctionType(parameter_type, result_type)
        return language.computation_from_proto(
            language.ComputationProto(type=language.to_proto(type_spec), tensorflow=message),
            type_spec,
        )

    return decorate


def spec_of(type_spec: language.Type) -> Any:
    """Returns the structure of `tf.TypeSpec` of a type's values."""
    if isinstance(type_spec, language.SequenceType):
        return tf.data.DatasetSpec(spec_of(type_spec.element))
    if isinstance(type_spec, language.TensorType):
        return tf.TensorSpec(type_spec.shape, type_spec.dtype)
    return pack_container(type_spec, [spec_of(t) for _, t in language.iter_elements(type_spec)])


def pack_container(type_spec: language.StructType, parts: list[Any]) -> Any:
    """Puts a struct's parts into its type's container, by default a dictionary or a tuple."""
    names = [name for name, _ in language.iter_elements(type_spec)]
    is_named = bool(names) and names[0] is not None
    container = getattr(type_spec, "python_container", None)
    container = container or (collections.OrderedDict if is_named else tuple)
    if not is_named:
        return container(parts)
    named = list(zip(names, parts))
    return container(named) if issubclass(container, Mapping) else container(**dict(named))


def _placeholders(type_spec: language.Type) -> tuple[Any, Any]:
    """Returns placeholders of a type's value, in its containers, and their names."""
    if isinstance(type_spec, language.TensorType):
        tensor = tf.compat.v1.placeholder(type_spec.dtype, type_spec.shape, name="argument")
        return tensor, _tensor(tensor)
    if isinstance(type_spec, language.SequenceType):
        variant = tf.compat.v1.placeholder(tf.variant, [])
        dataset = tf.data.experimental.from_variant(variant, spec_of(type_spec.element))
        return dataset, _dataset(variant)
    parts = [_placeholders(part) for _, part in language.iter_elements(type_spec)]
    return pack_container(type_spec, [p for p, _ in parts]), _struct(
        [binding for _, binding in parts]
    )


def _capture(value: Any) -> tuple[language.Type, Any]:
    """Returns the type of a traced value, and the names of its tensors."""
    if isinstance(value, tf.data.Dataset):
        element = language.to_type(tf.nest.map_structure(_tensor_type, value.element_spec))
        return language.SequenceType(element), _dataset(tf.data.experimental.to_variant(value))
    container: Any = type(value)
    if hasattr(value, "_asdict"):
        parts = list(value._asdict().items())
    elif attrs.has(container):
        parts = list(attrs.asdict(value, recurse=False).items())
    elif isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, (list, tuple)):
        parts = [(None, part) for part in value]
    else:
        tensor = tf.identity(value)  # A fed tensor cannot be fetched.
        return _tensor_type(tensor), _tensor(tensor)
    captured = [(name, *_capture(part)) for name, part in parts]
    fields = [(name, part) if name else part for name, part, _ in captured]
    binding = _struct([binding for *_, binding in captured])
    return language.StructWithPythonType(fields, container), binding


def _tensor_type(tensor: Any) -> language.TensorType:
    dtype = np.str_ if tensor.dtype == tf.string else tensor.dtype.base_dtype.as_numpy_dtype
    shape = None if tensor.shape.rank is None else tensor.shape.as_list()
    return language.TensorType(dtype, shape)


def _tensor(tensor: tf.Tensor) -> Any:
    return Binding(tensor=language.TensorFlowProto.TensorBinding(tensor_name=tensor.name))


def _dataset(variant: tf.Tensor) -> Any:
    name = language.TensorFlowProto.SequenceBinding(variant_tensor_name=variant.name)
    return Binding(sequence=name)


def _struct(bindings: list[Any]) -> Any:
    return Binding(struct=language.TensorFlowProto.StructBinding(element=bindings))

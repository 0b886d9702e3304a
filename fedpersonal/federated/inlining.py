"""TFF computations of TensorFlow code that builds Keras models, and TFF code inside TensorFlow's.

TFF traces TensorFlow code in a `tf.Graph`, where Keras falls back to its TF 1 behaviour and rejects
code that works in TF 2. Traced as a `tf.function` first, a model is built as in TF 2.

Inside TensorFlow code, TFF values are flat tensors in their types' order: `tf.nest` sorts the keys
of dicts, but TFF does not.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from fedpersonal import tff
from fedpersonal.errors import UserError
from fedpersonal.federated.captures import trace


def keras_computation(
    *types: Any, first: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], tff.Computation]:
    """Decorates TensorFlow code as a TFF computation of arguments of the given types.

    `first` is TensorFlow code of the same arguments; its result becomes the first argument of the
    decorated code. It is a separate part of the graph, which a runtime may execute in another way.
    """
    tff_types = [tff.to_type(t) for t in types]
    # Arguments are passed flat: a concrete function accepts no OrderedDict for a ModelWeights.
    structures = [tff.spec_of(t) for t in tff_types]

    def trace_flat(fn: Callable[..., Any], structures: list[Any]) -> Any:
        def flat_fn(*flat: tf.Tensor) -> Any:
            return fn(*tf.nest.pack_sequence_as(structures, flat))

        return trace(flat_fn, tf.nest.flatten(structures))

    def decorate(fn: Callable[..., Any]) -> tff.Computation:
        before = trace_flat(first, structures) if first else None
        specs = [tf.nest.map_structure(_spec_of, before.structured_outputs)] if before else []
        concrete = trace_flat(fn, [*specs, *structures])

        def call(*arguments):
            flat = tf.nest.flatten(list(arguments))
            results = tf.nest.flatten(before(*flat)) if before else []
            return concrete(*results, *flat)

        return tff.tf_computation(*tff_types)(call)

    return decorate


def _spec_of(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


class InlinedComputation:
    """A TFF computation of TensorFlow code, imported into each graph that calls it."""

    def __init__(self, computation: tff.Computation):
        """Takes a computation of tensors.

        Raises:
            UserError: If it has TensorFlow variables.
        """
        proto = tff.to_proto(computation.to_building_block()).tensorflow
        if proto.initialize_op:
            raise UserError("a part of the aggregator has TensorFlow variables")
        graph_def = tf.compat.v1.GraphDef()
        proto.graph_def.Unpack(graph_def)
        self._feeds = list(_tensor_names(proto.parameter)) if proto.HasField("parameter") else []
        self._fetches = list(_tensor_names(proto.result))
        # XLA rejects placeholders, even unused ones: only the nodes that results depend on are
        # kept, without the fed ones.
        nodes = {node.name: node for node in graph_def.node}
        fed, remaining = set(map(_node_of, self._feeds)), [*map(_node_of, self._fetches)]
        needed: set[str] = set()
        while remaining:
            name = remaining.pop()
            if name not in needed | fed:
                needed.add(name)
                remaining.extend(map(_node_of, nodes[name].input))
        kept = [node for node in graph_def.node if node.name in needed]
        for node in kept:
            node.input[:] = [i for i in node.input if not (i[0] == "^" and _node_of(i) in fed)]
            node.attr.pop("_class", None)  # It may name fed nodes, which are gone.
        self._read = {i if ":" in i else f"{i}:0" for node in kept for i in node.input}
        self._graph_def = tf.compat.v1.GraphDef(
            node=kept, library=graph_def.library, versions=graph_def.versions
        )

    def __call__(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        """Maps the argument's tensors to the result's."""
        # `identity` brings tensors of an outer graph into this one.
        inputs = dict(zip(self._feeds, map(tf.identity, arguments)))
        computed = [name for name in self._fetches if name not in inputs]
        results = tf.graph_util.import_graph_def(
            self._graph_def,
            input_map={name: tensor for name, tensor in inputs.items() if name in self._read},
            return_elements=computed,
            name="inlined",
        )
        tensors = {**inputs, **dict(zip(computed, results))}
        return [tensors[name] for name in self._fetches]


def leaves(value: Any) -> list[Any]:
    """Returns a value's tensors, in their type's order."""
    if isinstance(value, tff.Structure):
        return tff.flatten(value)
    is_leaf = isinstance(value, (tf.Tensor, tf.TensorSpec))
    return [value] if is_leaf else leaves(tff.from_container(value, recursive=True))


def pack(type_spec: tff.Type, tensors: Iterator[Any]) -> Any:
    """Packs tensors into the structure of a type: OrderedDict if it has names, else tuple."""
    if not isinstance(type_spec, tff.StructType):
        return next(tensors)
    parts = [(name, pack(part, tensors)) for name, part in tff.iter_elements(type_spec)]
    is_named = bool(parts) and parts[0][0] is not None
    return collections.OrderedDict(parts) if is_named else tuple(part for _, part in parts)


def with_containers(type_spec: tff.Type) -> tff.Type:
    """Returns a type with the containers of values of `pack`."""
    if not isinstance(type_spec, tff.StructType):
        return type_spec
    parts = [(n, with_containers(part)) for n, part in tff.iter_elements(type_spec)]
    is_named = bool(parts) and parts[0][0] is not None
    if is_named:
        return tff.StructWithPythonType(parts, collections.OrderedDict)
    return tff.StructWithPythonType([part for _, part in parts], tuple)


def replace_tensors(value: Any, tensors: list[Any]) -> Any:
    """Returns a structure with its tensors replaced."""
    new = {id(old): tensor for old, tensor in zip(leaves(value), tensors)}
    return tf.nest.map_structure(lambda old: new[id(old)], value)


def scalars_by_path(type_spec: tff.Type, value: Any) -> collections.OrderedDict:
    """Returns a value's scalar numbers by their path, such as `clipping/norm`."""
    named = zip(_paths("", type_spec), leaves(value))
    return collections.OrderedDict(
        (path, tensor)
        for path, tensor in named
        if tensor.shape.rank == 0 and (tensor.dtype.is_floating or tensor.dtype.is_integer)
    )


def _paths(path: str, type_spec: tff.Type) -> Iterator[str]:
    if not isinstance(type_spec, tff.StructType):
        yield path
        return
    for i, (name, part) in enumerate(tff.iter_elements(type_spec)):
        yield from _paths(f"{path}/{name or i}" if path else str(name or i), part)


def _node_of(tensor: str) -> str:
    return tensor.lstrip("^").partition(":")[0]


def _tensor_names(binding: Any) -> Iterator[str]:
    if binding.WhichOneof("binding") == "struct":
        for element in binding.struct.element:
            yield from _tensor_names(element)
    else:
        yield binding.tensor.tensor_name

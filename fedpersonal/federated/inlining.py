"""TFF computations of TensorFlow code that builds Keras models, and TFF's inside TensorFlow code.

TFF traces TensorFlow code in a graph of its own, where Keras falls back to its TF 1 behaviour and
refuses much that users write. Traced as a `tf.function` first, a model is built as in TF 2.

Inside TensorFlow code TFF's values are flat tensors in their types' order: `tf.nest` sorts the keys
of dicts, which TFF does not.
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

    `first` is TensorFlow code of the same arguments, and what it returns the other's first
    argument. It stays apart in the graph: a runtime may run it in another way.
    """
    tff_types = [tff.to_type(t) for t in types]
    # Arguments are fed flat: a concrete function takes no OrderedDict for a ModelWeights.
    structures = [tff.spec_of(t) for t in tff_types]

    def traced(fn: Callable[..., Any], structures: list[Any]) -> Any:
        def flat_fn(*flat: tf.Tensor) -> Any:
            return fn(*tf.nest.pack_sequence_as(structures, flat))

        return trace(flat_fn, tf.nest.flatten(structures))

    def decorate(fn: Callable[..., Any]) -> tff.Computation:
        before = traced(first, structures) if first else None
        made = [tf.nest.map_structure(_spec_of, before.structured_outputs)] if before else []
        concrete = traced(fn, [*made, *structures])

        def call(*arguments):
            flat = tf.nest.flatten(list(arguments))
            results = tf.nest.flatten(before(*flat)) if before else []
            return concrete(*results, *flat)

        return tff.tf_computation(*tff_types)(call)

    return decorate


def _spec_of(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


class Inlined:
    """A TensorFlow computation of TFF's, imported into each graph where it is called."""

    def __init__(self, computation: tff.Computation):
        """Takes a computation of tensors; a UserError says that it has variables."""
        proto = tff.to_proto(computation.to_building_block()).tensorflow
        if proto.initialize_op:
            raise UserError("a part of the aggregator has TensorFlow variables")
        graph_def = tf.compat.v1.GraphDef()
        proto.graph_def.Unpack(graph_def)
        self._feeds = list(_tensor_names(proto.parameter)) if proto.HasField("parameter") else []
        self._fetches = list(_tensor_names(proto.result))
        # XLA refuses placeholders, even those that nothing reads: of the graph remains what its
        # results are made of, but for what is fed.
        nodes = {node.name: node for node in graph_def.node}
        fed, wanted = set(map(_node_of, self._feeds)), [*map(_node_of, self._fetches)]
        needed: set[str] = set()
        while wanted:
            name = wanted.pop()
            if name not in needed | fed:
                needed.add(name)
                wanted.extend(map(_node_of, nodes[name].input))
        kept = [node for node in graph_def.node if node.name in needed]
        for node in kept:
            node.input[:] = [i for i in node.input if not (i[0] == "^" and _node_of(i) in fed)]
            node.attr.pop("_class", None)  # They may have stood beside what was fed.
        self._read = {i if ":" in i else f"{i}:0" for node in kept for i in node.input}
        self._graph_def = tf.compat.v1.GraphDef(
            node=kept, library=graph_def.library, versions=graph_def.versions
        )

    def __call__(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        """Takes the argument's tensors and returns the result's."""
        # Those of an outer graph become this one's.
        given = dict(zip(self._feeds, map(tf.identity, arguments)))
        made = [name for name in self._fetches if name not in given]
        results = tf.graph_util.import_graph_def(
            self._graph_def,
            input_map={name: tensor for name, tensor in given.items() if name in self._read},
            return_elements=made,
            name="inlined",
        )
        tensors = {**given, **dict(zip(made, results))}
        return [tensors[name] for name in self._fetches]


def leaves(value: Any) -> list[Any]:
    """Returns a value's tensors."""
    if isinstance(value, tff.Structure):
        return tff.flatten(value)
    is_leaf = isinstance(value, (tf.Tensor, tf.TensorSpec))
    return [value] if is_leaf else leaves(tff.from_container(value, recursive=True))


def pack(type_spec: tff.Type, tensors: Iterator[Any]) -> Any:
    """Gives tensors the structure of a type: OrderedDict where it has names, else tuple."""
    if not isinstance(type_spec, tff.StructType):
        return next(tensors)
    parts = [(name, pack(part, tensors)) for name, part in tff.iter_elements(type_spec)]
    is_named = bool(parts) and parts[0][0] is not None
    return collections.OrderedDict(parts) if is_named else tuple(part for _, part in parts)


def with_containers(type_spec: tff.Type) -> tff.Type:
    """Returns a type whose values are those of `pack`."""
    if not isinstance(type_spec, tff.StructType):
        return type_spec
    parts = [(n, with_containers(part)) for n, part in tff.iter_elements(type_spec)]
    is_named = bool(parts) and parts[0][0] is not None
    if is_named:
        return tff.StructWithPythonType(parts, collections.OrderedDict)
    return tff.StructWithPythonType([part for _, part in parts], tuple)


def replaced(value: Any, tensors: list[Any]) -> Any:
    """Returns a structure with other tensors in the places of its own."""
    new = {id(old): tensor for old, tensor in zip(leaves(value), tensors)}
    return tf.nest.map_structure(lambda old: new[id(old)], value)


def named_scalars(type_spec: tff.Type, value: Any) -> collections.OrderedDict:
    """Returns a value's numbers by their path, such as `clipping/norm`; what else it has is not."""
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

"""A TensorFlow graph of a TFF computation as a function of this process."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.runtime import xla

_log = logging.getLogger(__name__)

# With this name, a variable is another one in each execution of its op.
_ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"

_imports = itertools.count()


class Unsupported(Exception):
    """Says why a computation cannot be run in this process with certainty of the same result."""


class Graph:
    """Runs a TensorFlow graph: takes and returns values as `fedpersonal.runtime.values` has them.

    Variables of the graph are born and die with each call, as in a session of its own; so calls
    may run in several threads.
    """

    def __init__(
        self, computation: tff.framework.CompiledComputation, *, compiled: bool | None = False
    ):
        """Imports the graph.

        Args:
            computation: The computation whose graph it is.
            compiled: Whether XLA compiles it; None to do so where it seems worth it. What XLA
                refuses runs as it is.

        Raises:
            Unsupported: If it has state that would outlive a call.
        """
        self.block = computation
        proto = computation.proto.tensorflow
        graph_def = tf.compat.v1.GraphDef()
        proto.graph_def.Unpack(graph_def)
        check_supported(graph_def)
        self.graph_def = graph_def
        self._result = proto.result
        feeds = list(_tensor_names(proto.parameter)) if proto.HasField("parameter") else []
        fetches = list(_tensor_names(proto.result))
        handles = [node.name + ":0" for node in graph_def.node if node.op == "VarHandleOp"]
        for node in graph_def.node:
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = _ANONYMOUS
        wrapped = _import(graph_def)
        graph = wrapped.graph
        tensors = graph.get_tensor_by_name
        with graph.as_default():
            # What is fed cannot be fetched itself.
            results = [tf.identity(tensors(name)) for name in fetches]
        variables = [tensors(name) for name in handles] if proto.initialize_op else []
        self.function = wrapped.prune([*map(tensors, feeds), *variables], results)
        self.compiled = (
            not variables
            and compiled is not False
            and (compiled or xla.is_worth_compiling(graph_def))
        )
        if self.compiled:
            self._compile = functools.cache(functools.partial(_compiled, graph_def, feeds, fetches))
            self._lock = threading.Lock()
        self._create = None
        if variables:
            initialize = graph.get_operation_by_name(proto.initialize_op)
            with graph.as_default():
                with tf.control_dependencies([initialize]):
                    created = [tf.identity(handle) for handle in variables]
            self._create = wrapped.prune([], created)

    @property
    def graphs(self) -> list[Graph]:
        """The graph itself, as a `Function` has those that it calls."""
        return [self]

    def __call__(self, argument: Any = None) -> Any:
        """Runs the graph."""
        flat = [] if argument is None else list(_flatten(argument))
        if self.compiled:
            return _packed(self._result, iter(self._run_compiled(flat)))
        handles = [] if self._create is None else self._create()
        try:
            results = self.function(*flat, *handles)
        finally:
            for handle in handles:
                tf.raw_ops.DestroyResourceOp(resource=handle)
        return _packed(self._result, iter(results))

    def _run_compiled(self, flat: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        try:
            with self._lock:  # Members would all compile at once.
                function = self._compile()
            return function(*flat)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            _log.warning("XLA does not compile a part, which runs as it is: %s", _line(error))
            self.compiled = False
            return self.function(*flat)


def _line(error: tf.errors.OpError) -> str:
    return (error.message.strip().splitlines() or [""])[0][:200]


def _compiled(
    graph_def: tf.compat.v1.GraphDef, feeds: Sequence[str], fetches: Sequence[str]
) -> Callable[..., Any]:
    """Returns a graph as a function that XLA compiles for each shape of its arguments."""
    wrapped = _import(xla.for_xla(graph_def))
    graph = wrapped.graph
    tensors = graph.get_tensor_by_name
    with graph.as_default():
        results = [tf.identity(tensors(name)) for name in fetches]
    plain = wrapped.prune([tensors(name) for name in feeds], results)
    specs = [tf.TensorSpec(tensors(name).shape, tensors(name).dtype) for name in feeds]
    function = tf.function(
        lambda *flat: plain(*flat), input_signature=specs, autograph=False, jit_compile=True
    )
    return function.get_concrete_function()


def check_supported(graph_def: tf.compat.v1.GraphDef) -> None:
    """Raises `Unsupported` if a graph would behave otherwise here than in a session of its own."""
    for node in xla.all_nodes(graph_def):
        if node.op == "VarHandleOp":
            continue
        if "shared_name" in node.attr:
            raise Unsupported(f"the operation {node.op} keeps state under a name")
        seeds = [node.attr[name].i for name in ("seed", "seed2") if name in node.attr]
        if any(seeds):
            raise Unsupported(f"the operation {node.op} counts its draws from a seed")


def _import(graph_def: tf.compat.v1.GraphDef) -> Any:
    """Returns a wrapped function whose graph has a graph's operations, under their names."""
    own = _with_own_functions(graph_def)

    def imported() -> None:
        tf.import_graph_def(own, name="")

    return tf.compat.v1.wrap_function(imported, [])


def _with_own_functions(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Returns a graph whose functions have names that no other graph of this process has."""
    own = tf.compat.v1.GraphDef()
    own.CopyFrom(graph_def)
    number = next(_imports)
    names = {f.signature.name: f"{f.signature.name}_graph_{number}" for f in own.library.function}

    def rename(attributes: Mapping[str, Any]) -> None:
        for attribute in attributes.values():
            kind = attribute.WhichOneof("value")
            functions = {"func": [attribute.func], "list": attribute.list.func}.get(kind, [])
            for function in functions:
                function.name = names.get(function.name, function.name)
                rename(function.attr)

    for node in xla.all_nodes(own):
        node.op = names.get(node.op, node.op)
        rename(node.attr)
    for function in own.library.function:
        function.signature.name = names[function.signature.name]
        rename(function.attr)
    for gradient in own.library.gradient:
        gradient.function_name = names[gradient.function_name]
        gradient.gradient_func = names[gradient.gradient_func]
    return own


def _tensor_names(binding: Any) -> Iterator[str]:
    """Yields the tensors of a binding of TFF's, in order."""
    kind = binding.WhichOneof("binding")
    if kind == "struct":
        for element in binding.struct.element:
            yield from _tensor_names(element)
    elif kind == "sequence":
        yield binding.sequence.variant_tensor_name
    else:
        yield binding.tensor.tensor_name


def _flatten(value: Any) -> Iterator[tf.Tensor]:
    if isinstance(value, list):
        for part in value:
            yield from _flatten(part)
    else:
        yield value


def _packed(binding: Any, tensors: Iterator[tf.Tensor]) -> Any:
    """Gives tensors the structure of a binding."""
    if binding.WhichOneof("binding") == "struct":
        return [_packed(element, tensors) for element in binding.struct.element]
    return next(tensors)

"""A TensorFlow graph of a TFF computation as a function of this process."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

from fedpersonal.runtime import xla

_log = logging.getLogger(__name__)

# With this name, a variable is another one in each execution of its op.
_ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"

_imports = itertools.count()
_xla_lock = threading.Lock()

_Run = Callable[[Sequence[Any]], Sequence[Any]]


class Unsupported(Exception):
    """Says why a computation cannot be run in this process with certainty of the same result."""


class Graph:
    """Runs a TensorFlow graph: takes and returns values as `fedpersonal.runtime.values` has them.

    Calls keep nothing and may come from several threads.

    Attributes:
        compiled: Whether XLA compiles it.
    """

    def __init__(
        self, computation: tff.framework.CompiledComputation, *, compiled: bool | None = False
    ):
        """Imports the graph.

        Args:
            computation: The computation whose graph it is.
            compiled: Whether XLA compiles it; None to do so where it seems worth it. What XLA
                refuses, or would draw other random numbers in, runs as it is.

        Raises:
            Unsupported: If it has state that would outlive a call.
        """
        self.block = computation
        proto = computation.proto.tensorflow
        graph_def = tf.compat.v1.GraphDef()
        proto.graph_def.Unpack(graph_def)
        check_supported(graph_def)
        self._result = proto.result
        feeds = list(_tensor_names(proto.parameter)) if proto.HasField("parameter") else []
        fetches = list(_tensor_names(proto.result))
        is_plain = not (proto.initialize_op or _has_sequence(proto))
        if compiled is None:
            compiled = xla.is_worth_compiling(graph_def)
        self.compiled = compiled and is_plain and not xla.draws(graph_def)
        if self.compiled:
            self._run = self._unless_refused(graph_def, feeds, fetches)
        elif is_plain:
            self._run = _session(graph_def, feeds, fetches)
        else:
            self._run = _function(graph_def, feeds, fetches, proto.initialize_op)

    @property
    def graphs(self) -> list[Graph]:
        """The graph itself, as a `Function` has those that it calls."""
        return [self]

    def __call__(self, argument: Any = None) -> Any:
        """Runs the graph."""
        flat = [] if argument is None else list(_flatten(argument))
        return _packed(self._result, iter(self._run(flat)))

    def _unless_refused(
        self, graph_def: tf.compat.v1.GraphDef, feeds: Sequence[str], fetches: Sequence[str]
    ) -> _Run:
        """Returns what runs the graph compiled, and from the first refusal on as it is."""
        lock, made = threading.Lock(), list[_Run]()

        def run(arguments: Sequence[Any]) -> Sequence[Any]:
            try:
                with lock:  # Members would all import it.
                    if not made:
                        made.append(_compiled(graph_def, feeds, fetches))
                return made[0](arguments)
            except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
                with lock:
                    if self.compiled:
                        reason = (error.message.strip().splitlines() or [""])[0][:200]
                        _log.warning("XLA does not compile a part; it runs as it is: %s", reason)
                        self.compiled, self._run = False, _session(graph_def, feeds, fetches)
                return self._run(arguments)

        return run


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


def _session(
    graph_def: tf.compat.v1.GraphDef, feeds: Sequence[str], fetches: Sequence[str]
) -> _Run:
    """Returns a graph as what a session runs, which is quicker than a function."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        # What is fed cannot be fetched itself.
        results = [tf.identity(graph.get_tensor_by_name(name)) for name in fetches]
    return _callable(graph, feeds, [result.name for result in results])


def _compiled(
    graph_def: tf.compat.v1.GraphDef, feeds: Sequence[str], fetches: Sequence[str]
) -> _Run:
    """Returns a graph as one that XLA compiles for each shape of its arguments."""
    with _xla_lock:
        xla.keep_operations_whole()
    wrapped = _import(_with_own_functions(xla.for_xla(graph_def)))
    plain = _prune(wrapped, feeds, fetches)
    function = tf.function(lambda *given: plain(*given), autograph=False, jit_compile=True)
    specs = [wrapped.graph.get_tensor_by_name(name) for name in feeds]
    with tf.Graph().as_default() as graph:
        arguments = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
        results = [tf.identity(result) for result in function(*arguments)]
    return _callable(graph, [a.name for a in arguments], [result.name for result in results])


def _callable(graph: tf.Graph, feeds: Sequence[str], fetches: Sequence[str]) -> _Run:
    """Returns what runs a graph in a session of its own."""
    if not fetches:
        return lambda _: ()
    options = config_pb2.CallableOptions(feed=feeds, fetch=fetches)
    # In the caller's thread: to hand an operation to another takes longer than most of them, and
    # members have threads of their own.
    options.run_options.inter_op_thread_pool = -1
    # Grappler's inlining breaks loops inside conditions, now and then, and makes nothing faster.
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    session = tf.compat.v1.Session(graph=graph, config=config)
    # `make_callable` parses its feeds in each call, which takes longer than small graphs do.
    call = session._make_callable_from_options(options)
    return lambda arguments: call(*map(np.asarray, arguments))


def _function(
    graph_def: tf.compat.v1.GraphDef,
    feeds: Sequence[str],
    fetches: Sequence[str],
    initialize_op: str,
) -> _Run:
    """Returns a graph with variables or datasets as a function.

    A session takes no dataset. Variables are born and die with each call.
    """
    for node in graph_def.node:
        if node.op == "VarHandleOp":
            node.attr["shared_name"].s = _ANONYMOUS
    own = _with_own_functions(graph_def)
    wrapped = _import(own)
    graph = wrapped.graph
    handles = [node.name + ":0" for node in graph_def.node if node.op == "VarHandleOp"]
    variables = [graph.get_tensor_by_name(name) for name in handles if initialize_op]
    function = _prune(wrapped, [*feeds, *handles] if initialize_op else feeds, fetches)
    if not variables:

        def run(arguments: Sequence[Any]) -> Sequence[Any]:
            return function(*map(tf.convert_to_tensor, arguments))

        return _with_functions(run, own)
    with graph.as_default(), tf.control_dependencies([graph.get_operation_by_name(initialize_op)]):
        created = [tf.identity(handle) for handle in variables]
    create = wrapped.prune([], created)

    def run_with_variables(arguments: Sequence[Any]) -> Sequence[Any]:
        handles = create()
        try:
            return function(*map(tf.convert_to_tensor, arguments), *handles)
        finally:
            for handle in handles:
                tf.raw_ops.DestroyResourceOp(resource=handle)

    return _with_functions(run_with_variables, own)


def _with_functions(run: _Run, graph_def: tf.compat.v1.GraphDef) -> _Run:
    """Has a graph's functions end with what runs it; TensorFlow would keep them."""
    names = [function.signature.name for function in graph_def.library.function]
    weakref.finalize(run, _remove, names).atexit = False
    return run


def _remove(names: Sequence[str]) -> None:
    known = context.context()
    for name in names:
        while known.has_function(name):  # It counts how often it was told of it.
            known.remove_function(name)


def _import(graph_def: tf.compat.v1.GraphDef) -> Any:
    """Returns a wrapped function whose graph has a graph's operations, under their names."""

    def imported() -> None:
        tf.import_graph_def(graph_def, name="")

    return tf.compat.v1.wrap_function(imported, [])


def _prune(wrapped: Any, feeds: Sequence[str], fetches: Sequence[str]) -> Any:
    """Returns the function from some tensors of a wrapped function to others."""
    tensors = wrapped.graph.get_tensor_by_name
    with wrapped.graph.as_default():
        # What is fed cannot be fetched itself.
        results = [tf.identity(tensors(name)) for name in fetches]
    return wrapped.prune([tensors(name) for name in feeds], results)


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


def _has_sequence(proto: Any) -> bool:
    """Tells whether a computation takes or returns a dataset."""
    bindings = [proto.parameter, proto.result]
    while bindings:
        binding = bindings.pop()
        if binding.WhichOneof("binding") == "sequence":
            return True
        bindings.extend(binding.struct.element)
    return False


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


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for part in value:
            yield from _flatten(part)
    else:
        yield value


def _packed(binding: Any, tensors: Iterator[Any]) -> Any:
    """Gives tensors the structure of a binding."""
    if binding.WhichOneof("binding") == "struct":
        return [_packed(element, tensors) for element in binding.struct.element]
    return next(tensors)

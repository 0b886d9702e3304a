"""TensorFlow graphs of TFF computations as functions, plain or compiled by XLA."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf import config_pb2

from fedpersonal import tff
from fedpersonal.errors import UserError

_LOOPS = ("While", "StatelessWhile")
# XLA's random numbers differ from TensorFlow's.
_RANDOM = ("Random", "StatelessRandom", "StatelessTruncatedNormal", "TruncatedNormal")
# XLA compiles again for each size of the result of these operations.
_DATA_DEPENDENT = ("Where", "Unique")
# TensorFlow's operations without an XLA kernel: the result's name, the replacement, its result.
_REPLACEMENTS = {
    "InplaceAdd": ("y", "TensorScatterAdd", "output"),
    "DeepCopy": ("y", "Identity", "output"),
}

_xla_lock = threading.Lock()

_Run = Callable[[Sequence[Any]], Sequence[Any]]


class Graph:
    """A callable TensorFlow graph on values of `fedpersonal.runtime.values`.

    Calls keep no state and may come from several threads.

    Attributes:
        block: The computation.
        compiled: Whether XLA compiles the graph.
    """

    def __init__(self, block: tff.CompiledComputation, *, compile: bool = False):
        """Imports the graph.

        Args:
            block: The computation with the graph.
            compile: Whether XLA compiles the graph if that seems worth it. Parts that XLA refuses,
                or in which its random numbers would differ, run without XLA.

        Raises:
            UserError: If the graph takes or returns a dataset, or has state that outlives a call.
        """
        self.block = block
        proto = tff.to_proto(block).tensorflow
        graph_def = tf.compat.v1.GraphDef()
        proto.graph_def.Unpack(graph_def)
        _check_supported(graph_def)
        self._result = proto.result
        feeds = list(_tensor_names(proto.parameter)) if proto.HasField("parameter") else []
        fetches = list(_tensor_names(proto.result))
        self.compiled = compile and is_worth_compiling(graph_def)
        if self.compiled:
            self._run = self._run_compiled(graph_def, feeds, fetches)
        else:
            self._run = _session(graph_def, feeds, fetches)

    @property
    def graphs(self) -> list[Graph]:
        """The graph itself; a `Function` has the graphs that it calls."""
        return [self]

    def __call__(self, argument: Any = None) -> Any:
        """Runs the graph."""
        flat = [] if argument is None else list(_flatten(argument))
        return _pack(self._result, iter(self._run(flat)))

    def _run_compiled(
        self, graph_def: tf.compat.v1.GraphDef, feeds: Sequence[str], fetches: Sequence[str]
    ) -> _Run:
        """Returns a function that runs the graph compiled, or plain after XLA's first refusal."""
        lock, functions = threading.Lock(), list[_Run]()

        def run(arguments: Sequence[Any]) -> Sequence[Any]:
            try:
                with lock:  # Otherwise the threads of all shards would import it.
                    if not functions:
                        functions.append(_compiled(graph_def, feeds, fetches))
                return functions[0](arguments)
            except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
                with lock:
                    if self.compiled:
                        reason = (error.message.strip().splitlines() or [""])[0][:200]
                        logging.warning("XLA does not compile a part; it runs as it is: %s", reason)
                        self.compiled, self._run = False, _session(graph_def, feeds, fetches)
                return self._run(arguments)

        return run


def unsupported(feature: str) -> UserError:
    """Returns the error of a computation with a feature that the local runtime lacks."""
    return UserError(
        f"{feature}, which the runtime local does not know; TFF's does: --runtime=tff, or "
        'fp.use_runtime("tff").'
    )


def _check_supported(graph_def: tf.compat.v1.GraphDef) -> None:
    """Raises a `UserError` if a graph would behave differently than in a separate session."""
    for node in _all_nodes(graph_def):
        if "shared_name" in node.attr:
            raise unsupported(f"A computation has {node.op}, an operation that keeps state")
        if any(node.attr[name].i for name in ("seed", "seed2") if name in node.attr):
            raise unsupported(
                f"A computation has {node.op} with a seed, which counts its random numbers"
            )


def _session(
    graph_def: tf.compat.v1.GraphDef, feeds: Sequence[str], fetches: Sequence[str]
) -> _Run:
    """Returns a function that runs a graph in a session, which is faster than `tf.function`."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        # A fed tensor cannot be fetched.
        results = [tf.identity(graph.get_tensor_by_name(name)) for name in fetches]
    return _callable(graph, feeds, [result.name for result in results])


def _compiled(
    graph_def: tf.compat.v1.GraphDef, feeds: Sequence[str], fetches: Sequence[str]
) -> _Run:
    """Returns a function that runs a graph compiled by XLA for each shape of its arguments.

    Random operations, and all that they need, run without XLA; the rest takes their results.
    """
    with _xla_lock:
        set_xla_flags()
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(for_xla(graph_def), name="")
        # A fed tensor cannot be fetched.
        outputs = [tf.identity(graph.get_tensor_by_name(name)) for name in fetches]
        whole = graph.as_graph_def()
        plain = {*_split(whole)[0], *(name.partition(":")[0] for name in feeds)}
        compiled = [o for o in outputs if o.op.name not in plain]
        subgraph, inputs = _extract_subgraph(whole, [o.op.name for o in compiled], plain)

        @functools.partial(tf.function, autograph=False, jit_compile=True)
        def function(*tensors: tf.Tensor) -> list[tf.Tensor]:
            names = [output.name for output in compiled]
            return tf.import_graph_def(subgraph, dict(zip(inputs, tensors)), names, name="")

        results = function(*map(graph.get_tensor_by_name, inputs)) if compiled else []
        by_name = dict(zip([output.name for output in compiled], map(tf.identity, results)))
        return _callable(graph, feeds, [by_name.get(o.name, o).name for o in outputs])


def _split(graph_def: tf.compat.v1.GraphDef) -> tuple[set[str], set[str]]:
    """Returns the nodes that run without XLA, and the others.

    Random nodes, nodes of data-dependent sizes, and all that they need run without XLA: its random
    numbers differ from TensorFlow's, and it compiles again for each size.
    """
    functions = {function.signature.name: function for function in graph_def.library.function}
    nodes = {node.name: node for node in graph_def.node}
    waiting = [
        n.name for n in graph_def.node if _has_operation(n, functions, _DATA_DEPENDENT + _RANDOM)
    ]
    plain: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in plain:
            plain.add(name)
            waiting.extend(map(_node_of, nodes[name].input))
    return plain, nodes.keys() - plain


def _has_operation(node: Any, functions: Mapping[str, Any], operations: tuple[str, ...]) -> bool:
    """Returns whether a node is one of the operations, or calls a function that has one."""
    if node.op.startswith(operations):
        return True
    called = [node.op, *(name for a in node.attr.values() for name in _called_functions(a))]
    inner = [functions[name].node_def for name in called if name in functions]
    return any(_has_operation(n, functions, operations) for part in inner for n in part)


def _called_functions(attribute: Any) -> list[str]:
    """Returns the names of the functions in an attribute of a node."""
    names = [function.name for function in attribute.list.func]
    return [attribute.func.name, *names] if attribute.func.name else names


def _extract_subgraph(
    graph_def: tf.compat.v1.GraphDef, outputs: Sequence[str], fed: Collection[str]
) -> tuple[tf.compat.v1.GraphDef, list[str]]:
    """Returns the subgraph that computes outputs from fed nodes, and the fed nodes' tensors.

    It has no placeholder, because XLA refuses even unused ones.
    """
    nodes, waiting, used = {node.name: node for node in graph_def.node}, [*outputs], {*outputs}
    while waiting:
        sources = set(map(_node_of, nodes[waiting.pop()].input)) - used
        used |= sources
        waiting.extend(sources.difference(fed))
    subgraph = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    subgraph.node.extend(n for n in graph_def.node if n.name in used and n.name not in fed)
    tensors = {i for node in subgraph.node for i in node.input if _node_of(i) in fed}
    return subgraph, sorted(i if ":" in i else f"{i}:0" for i in tensors)


def _node_of(tensor: str) -> str:
    return tensor.lstrip("^").partition(":")[0]


def _callable(graph: tf.Graph, feeds: Sequence[str], fetches: Sequence[str]) -> _Run:
    """Returns a function that runs a graph in a separate session."""
    if not fetches:
        return lambda _: ()
    options = config_pb2.CallableOptions(feed=feeds, fetch=fetches)
    # Run in the caller's thread: handing an operation to another thread takes longer than most
    # operations, and each shard has a thread.
    options.run_options.inter_op_thread_pool = -1
    # Grappler's inlining sometimes breaks loops inside conditions, and makes nothing faster.
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    session = tf.compat.v1.Session(graph=graph, config=config)
    # `make_callable` parses its feeds in each call, which takes longer than a small graph.
    call = session._make_callable_from_options(options)
    return lambda arguments: call(*map(np.asarray, arguments))


# All versions of XLA have these flags, and ignore unknown values.
_FLAGS = {
    # The first distributes an operation over threads, so that shards would wait for each other. The
    # second splits each sum into two loops, for accuracy that sums over a batch do not need.
    "xla_disable_hlo_passes": ("cpu-parallel-task-assigner", "tree_reduction_rewriter"),
    # Later versions generate code through MLIR, and unroll loops. Each can double the compile time
    # of a round, which then runs no faster.
    "xla_backend_extra_options": (
        "xla_cpu_disable_new_fusion_emitters",
        "xla_cpu_disable_loop_unrolling",
    ),
}


@functools.cache
def set_xla_flags() -> None:
    """Makes XLA compile quickly, and each operation to one loop in one thread.

    Flags of the environment take precedence.
    """
    user_flags = os.environ.get("XLA_FLAGS")
    flags = [user_flags] if user_flags else []
    flags += [
        f"--{f}={','.join(values)}" for f, values in _FLAGS.items() if f not in (user_flags or "")
    ]
    os.environ["XLA_FLAGS"] = " ".join(flags)
    try:
        # XLA reads its flags once, when it is first used; child processes must not inherit them.
        tf.function(lambda: tf.zeros([]), autograph=False, jit_compile=True)()
    finally:
        del os.environ["XLA_FLAGS"]
        if user_flags is not None:
            os.environ["XLA_FLAGS"] = user_flags


def is_worth_compiling(graph_def: tf.compat.v1.GraphDef) -> bool:
    """Returns whether a graph has a loop apart from the nodes that run without XLA."""
    _, others = _split(graph_def)
    functions = {function.signature.name: function for function in graph_def.library.function}
    return any(_has_operation(n, functions, _LOOPS) for n in graph_def.node if n.name in others)


def for_xla(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Returns a graph in which pure counterparts replace operations that XLA lacks."""
    changed = tf.compat.v1.GraphDef()
    changed.CopyFrom(graph_def)
    _replace(changed.node, inside_function=False)
    for function in changed.library.function:
        renamed = _replace(function.node_def, inside_function=True)
        for node in function.node_def:
            for i, name in enumerate(node.input):
                node.input[i] = renamed.get(name, name)
        for result, name in function.ret.items():
            function.ret[result] = renamed.get(name, name)
    return changed


def _all_nodes(graph_def: tf.compat.v1.GraphDef) -> Iterator[Any]:
    """Yields the nodes of a graph and of its functions."""
    functions = (function.node_def for function in graph_def.library.function)
    return itertools.chain(graph_def.node, *functions)


def _replace(nodes: Any, *, inside_function: bool) -> dict[str, str]:
    """Replaces nodes in place; returns old to new names of their results within a function."""
    renamed, added = {}, []
    for node in nodes:
        if node.op not in _REPLACEMENTS:
            continue
        old, replacement, new = _REPLACEMENTS[node.op]
        renamed[f"{node.name}:{old}:0"] = f"{node.name}:{new}:0"
        if node.op == "InplaceAdd":
            added.extend(_as_scatter(node, inside_function=inside_function))
        node.op = replacement
    nodes.extend(added)
    return renamed


def _as_scatter(node: Any, *, inside_function: bool) -> list[Any]:
    """Converts the inputs (x, i, v) to those of a scatter, whose indices are (n, 1)."""
    axis = tf.compat.v1.NodeDef(name=f"{node.name}/axis", op="Const")
    axis.attr["dtype"].type = tf.int32.as_datatype_enum
    axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.int32(1)))
    expanded = tf.compat.v1.NodeDef(name=f"{node.name}/indices", op="ExpandDims")
    axis_name = f"{axis.name}:output:0" if inside_function else axis.name
    expanded.input.extend([node.input[1], axis_name])
    expanded.attr["T"].type = tf.int32.as_datatype_enum
    expanded.attr["Tdim"].type = tf.int32.as_datatype_enum
    node.input[1] = f"{expanded.name}:output:0" if inside_function else expanded.name
    node.attr["Tindices"].type = tf.int32.as_datatype_enum
    return [axis, expanded]


def _tensor_names(binding: Any) -> Iterator[str]:
    """Yields the names of the tensors of a TFF binding, in order."""
    kind = binding.WhichOneof("binding")
    if kind == "struct":
        for element in binding.struct.element:
            yield from _tensor_names(element)
    elif kind == "sequence":
        raise unsupported("A computation takes or returns a tf.data.Dataset")
    else:
        yield binding.tensor.tensor_name


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for part in value:
            yield from _flatten(part)
    else:
        yield value


def _pack(binding: Any, tensors: Iterator[Any]) -> Any:
    """Gives tensors the structure of a binding."""
    if binding.WhichOneof("binding") == "struct":
        return [_pack(element, tensors) for element in binding.struct.element]
    return next(tensors)

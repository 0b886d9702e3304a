"""A TensorFlow graph of a TFF computation as a function, plain or compiled by XLA."""

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
# XLA draws other numbers than TensorFlow.
_RANDOM = ("Random", "StatelessRandom", "StatelessTruncatedNormal", "TruncatedNormal")
# XLA compiles again for each size of such a result.
_DATA_DEPENDENT = ("Where", "Unique")
# TensorFlow's operations without a kernel of XLA's: name of the result, and what stands in.
_STANDINS = {
    "InplaceAdd": ("y", "TensorScatterAdd", "output"),
    "DeepCopy": ("y", "Identity", "output"),
}

_xla_lock = threading.Lock()

_Run = Callable[[Sequence[Any]], Sequence[Any]]


class Graph:
    """Runs a TensorFlow graph: takes and returns values as `fedpersonal.runtime.values` has them.

    Calls keep nothing and may come from several threads.

    Attributes:
        block: The computation.
        compiled: Whether XLA compiles it.
    """

    def __init__(self, block: tff.CompiledComputation, *, compile: bool = False):
        """Imports the graph.

        Args:
            block: The computation whose graph it is.
            compile: Whether XLA compiles it where that seems worth it. What XLA refuses, or would
                draw other random numbers in, runs as it is.

        Raises:
            UserError: If it takes or returns a dataset, or has state that would outlive a call.
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
            self._run = self._unless_refused(graph_def, feeds, fetches)
        else:
            self._run = _session(graph_def, feeds, fetches)

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
                        logging.warning("XLA does not compile a part; it runs as it is: %s", reason)
                        self.compiled, self._run = False, _session(graph_def, feeds, fetches)
                return self._run(arguments)

        return run


def unsupported(what: str) -> UserError:
    """Returns the error of a computation that has something that is not run in this process."""
    return UserError(
        f"{what}, which the runtime local does not know; TFF's own does: --runtime=tff, or "
        'fp.use_runtime("tff").'
    )


def _check_supported(graph_def: tf.compat.v1.GraphDef) -> None:
    """Raises a `UserError` if a graph would behave otherwise than in a session of its own."""
    for node in _all_nodes(graph_def):
        if "shared_name" in node.attr:
            raise unsupported(f"A computation has {node.op}, an operation that keeps state")
        if any(node.attr[name].i for name in ("seed", "seed2") if name in node.attr):
            raise unsupported(f"A computation has {node.op} with a seed, which counts its draws")


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
    """Returns a graph as one that XLA compiles for each shape of its arguments.

    What draws, and all that it needs, runs as it is, and the rest takes its results.
    """
    with _xla_lock:
        set_xla_flags()
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(for_xla(graph_def), name="")
        # What is fed cannot be fetched itself.
        outputs = [tf.identity(graph.get_tensor_by_name(name)) for name in fetches]
        whole = graph.as_graph_def()
        plain = {*_split(whole)[0], *(name.partition(":")[0] for name in feeds)}
        compiled = [o for o in outputs if o.op.name not in plain]
        needed, given = _needed(whole, [o.op.name for o in compiled], plain)

        @functools.partial(tf.function, autograph=False, jit_compile=True)
        def function(*tensors: tf.Tensor) -> list[tf.Tensor]:
            names = [output.name for output in compiled]
            return tf.import_graph_def(needed, dict(zip(given, tensors)), names, name="")

        results = function(*map(graph.get_tensor_by_name, given)) if compiled else []
        made = dict(zip([output.name for output in compiled], map(tf.identity, results)))
        return _callable(graph, feeds, [made.get(o.name, o).name for o in outputs])


def _split(graph_def: tf.compat.v1.GraphDef) -> tuple[set[str], set[str]]:
    """Returns the nodes that draw or have sizes of data, with all that they need; and the others.

    XLA draws other numbers than TensorFlow, and compiles again for each size.
    """
    functions = {function.signature.name: function for function in graph_def.library.function}
    nodes = {node.name: node for node in graph_def.node}
    waiting = [n.name for n in graph_def.node if _runs(n, functions, _DATA_DEPENDENT + _RANDOM)]
    plain: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in plain:
            plain.add(name)
            waiting.extend(map(_node_of, nodes[name].input))
    return plain, nodes.keys() - plain


def _runs(node: Any, functions: Mapping[str, Any], operations: tuple[str, ...]) -> bool:
    """Tells whether a node is of some operations, or calls functions that have any."""
    if node.op.startswith(operations):
        return True
    called = [node.op, *(name for a in node.attr.values() for name in _named(a))]
    inner = [functions[name].node_def for name in called if name in functions]
    return any(_runs(n, functions, operations) for part in inner for n in part)


def _named(attribute: Any) -> list[str]:
    """Returns the functions that an attribute of a node names."""
    listed = [function.name for function in attribute.list.func]
    return [attribute.func.name, *listed] if attribute.func.name else listed


def _needed(
    graph_def: tf.compat.v1.GraphDef, outputs: Sequence[str], fed: Collection[str]
) -> tuple[tf.compat.v1.GraphDef, list[str]]:
    """Returns a graph of the nodes that lead to outputs, but for those fed; and tensors of these.

    XLA takes no placeholder, not even one that nothing needs.
    """
    nodes, waiting, used = {node.name: node for node in graph_def.node}, [*outputs], {*outputs}
    while waiting:
        found = set(map(_node_of, nodes[waiting.pop()].input)) - used
        used |= found
        waiting.extend(found.difference(fed))
    needed = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    needed.node.extend(n for n in graph_def.node if n.name in used and n.name not in fed)
    tensors = {i for node in needed.node for i in node.input if _node_of(i) in fed}
    return needed, sorted(i if ":" in i else f"{i}:0" for i in tensors)


def _node_of(tensor: str) -> str:
    return tensor.lstrip("^").partition(":")[0]


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


# All versions of XLA know these flags, and ignore values that they do not know.
_FLAGS = {
    # One gives an operation to several threads: those of the shards would wait for each other. The
    # other makes two loops of each sum, for accuracy that sums over a batch do not need.
    "xla_disable_hlo_passes": ("cpu-parallel-task-assigner", "tree_reduction_rewriter"),
    # Later versions generate code through MLIR, and unroll loops. Each can double the time that XLA
    # takes to compile a round, which then runs no faster.
    "xla_backend_extra_options": (
        "xla_cpu_disable_new_fusion_emitters",
        "xla_cpu_disable_loop_unrolling",
    ),
}


@functools.cache
def set_xla_flags() -> None:
    """Has XLA compile quickly, and each operation to one loop in one thread.

    Flags that the environment sets are the user's wish.
    """
    given = os.environ.get("XLA_FLAGS")
    flags = [given] if given else []
    flags += [f"--{f}={','.join(values)}" for f, values in _FLAGS.items() if f not in (given or "")]
    os.environ["XLA_FLAGS"] = " ".join(flags)
    try:
        # XLA reads its flags once, when it is first used; they are not for others that have one.
        tf.function(lambda: tf.zeros([]), autograph=False, jit_compile=True)()
    finally:
        del os.environ["XLA_FLAGS"]
        if given is not None:
            os.environ["XLA_FLAGS"] = given


def is_worth_compiling(graph_def: tf.compat.v1.GraphDef) -> bool:
    """Tells whether a graph has a loop beside random draws and sizes that follow from data."""
    _, others = _split(graph_def)
    functions = {function.signature.name: function for function in graph_def.library.function}
    return any(_runs(n, functions, _LOOPS) for n in graph_def.node if n.name in others)


def for_xla(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Returns a graph without operations that XLA lacks: their pure counterparts stand in."""
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
        if node.op not in _STANDINS:
            continue
        old, standin, new = _STANDINS[node.op]
        renamed[f"{node.name}:{old}:0"] = f"{node.name}:{new}:0"
        if node.op == "InplaceAdd":
            added.extend(_as_scatter(node, inside_function=inside_function))
        node.op = standin
    nodes.extend(added)
    return renamed


def _as_scatter(node: Any, *, inside_function: bool) -> list[Any]:
    """Turns the inputs (x, i, v) into those of a scatter, whose indices are (n, 1)."""
    axis = tf.compat.v1.NodeDef(name=f"{node.name}/axis", op="Const")
    axis.attr["dtype"].type = tf.int32.as_datatype_enum
    axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.int32(1)))
    expanded = tf.compat.v1.NodeDef(name=f"{node.name}/indices", op="ExpandDims")
    of_axis = f"{axis.name}:output:0" if inside_function else axis.name
    expanded.input.extend([node.input[1], of_axis])
    expanded.attr["T"].type = tf.int32.as_datatype_enum
    expanded.attr["Tdim"].type = tf.int32.as_datatype_enum
    node.input[1] = f"{expanded.name}:output:0" if inside_function else expanded.name
    node.attr["Tindices"].type = tf.int32.as_datatype_enum
    return [axis, expanded]


def _tensor_names(binding: Any) -> Iterator[str]:
    """Yields the tensors of a binding of TFF's, in order."""
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


def _packed(binding: Any, tensors: Iterator[Any]) -> Any:
    """Gives tensors the structure of a binding."""
    if binding.WhichOneof("binding") == "struct":
        return [_packed(element, tensors) for element in binding.struct.element]
    return next(tensors)

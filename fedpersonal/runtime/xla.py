"""Which TensorFlow graphs XLA may compile, and what it needs of them."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

_LOOPS = {"While", "StatelessWhile"}
# XLA draws other numbers than TensorFlow.
_RANDOM = ("Random", "StatelessRandom", "StatelessTruncatedNormal", "TruncatedNormal")
# XLA compiles again for each size of such a result.
_DATA_DEPENDENT = ("Where", "Unique", "ReduceDataset", "TensorSlice", "DatasetToSingle")
# TensorFlow's operations without a kernel of XLA's: name of the result, and what stands in.
_STANDINS = {
    "InplaceAdd": ("y", "TensorScatterAdd", "output"),
    "DeepCopy": ("y", "Identity", "output"),
}


@functools.cache
def keep_operations_whole() -> None:
    """Has XLA run each operation in one thread: the members' threads would wait for each other."""
    given = os.environ.get("XLA_FLAGS")
    if "xla_disable_hlo_passes" in (given or ""):
        return
    flag = "--xla_disable_hlo_passes=cpu-parallel-task-assigner"
    os.environ["XLA_FLAGS"] = f"{given or ''} {flag}"
    try:
        # XLA reads its flags once, when it is first used; they are not for others that have one.
        tf.function(lambda: tf.zeros([]), jit_compile=True)()
    finally:
        del os.environ["XLA_FLAGS"]
        if given is not None:
            os.environ["XLA_FLAGS"] = given


def draws(graph_def: tf.compat.v1.GraphDef) -> bool:
    """Tells whether a graph draws random numbers."""
    return any(node.op.startswith(_RANDOM) for node in all_nodes(graph_def))


def is_worth_compiling(graph_def: tf.compat.v1.GraphDef) -> bool:
    """Tells whether a graph has a loop, and no sizes that follow from data."""
    operations = {node.op for node in all_nodes(graph_def)}
    return bool(operations & _LOOPS) and not any(
        operation.startswith(_DATA_DEPENDENT) for operation in operations
    )


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


def all_nodes(graph_def: tf.compat.v1.GraphDef) -> Iterator[Any]:
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

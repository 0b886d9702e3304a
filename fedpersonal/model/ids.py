"""Which of a model's inputs select rows of tables, found in its graph.

Compiled by XLA, an id beyond a table's rows reads another row, and no error says so: ids are
compared with the tables before anything runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Operations that leave an id as it is.
_PASSING = ("Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient")
# So many examples are looked at together where the model computes ids of its inputs.
_CHUNK = 2**14


class RowSelection(NamedTuple):
    """An operation that selects rows of a table by ids which follow from the inputs alone.

    Attributes:
        table: The table's name, for messages.
        rows: How many rows it has.
        inputs: The inputs that ids follow from.
        compute: None where an id is the input's value as it is; otherwise maps input name to
            (n, ...) to the least and the largest id.
    """

    table: str
    rows: int
    inputs: tuple[str, ...]
    compute: Callable[[Mapping[str, np.ndarray]], tuple[int, int]] | None

    def find_wrong(self, columns: Mapping[str, np.ndarray]) -> tuple[int, int] | None:
        """Returns the first example with a computed id that the table has no row for, and the id.

        Args:
            columns: Input name to (n, ...), in the dtype of the model's input.
        """
        assert self.compute is not None
        columns = {name: columns[name] for name in self.inputs}
        count = len(next(iter(columns.values())))
        for start in range(0, count, _CHUNK):
            low, high = start, min(start + _CHUNK, count)
            wrong = self._wrong_id(columns, low, high)
            while wrong is not None and high - low > 1:
                middle = (low + high) // 2
                is_before = self._wrong_id(columns, low, middle) is not None
                low, high = (low, middle) if is_before else (middle, high)
            if wrong is not None:
                found = self._wrong_id(columns, low, high)
                return low, wrong if found is None else found
        return None

    def _wrong_id(self, columns: Mapping[str, np.ndarray], low: int, high: int) -> int | None:
        assert self.compute is not None
        least, most = self.compute({name: v[low:high] for name, v in columns.items()})
        if 0 <= least and most < self.rows:
            return None
        return most if most >= self.rows else least


def find_row_selections(
    inputs: Mapping[str, tf.Tensor], variables: Sequence[tf.Variable]
) -> tuple[RowSelection, ...]:
    """Finds where a graph selects rows by ids that follow from the inputs, and from nothing else.

    Operations within functions and loops are not looked at.

    Args:
        inputs: Input name to placeholder, in the graph of a function.
        variables: The graph's variables.
    """
    graph = next(iter(inputs.values())).graph
    handles = {id(v.handle): v for v in variables}
    captured = [(inner.name, handles.get(id(outer))) for outer, inner in graph.captures]
    tables = {name: variable for name, variable in captured if variable is not None}
    found = []
    for op in graph.get_operations():
        for name, rows, ids in _selected(op, tables):
            if source := _input_of(ids, inputs):
                found.append(RowSelection(name, rows, (source,), None))
            elif followed := _follow(ids, inputs):
                sources, operations = followed
                compute = _computing(graph, ids, {n: inputs[n] for n in sources}, operations)
                found.append(RowSelection(name, rows, sources, compute))
    return tuple(found)


def _selected(
    op: tf.Operation, tables: Mapping[str, tf.Variable]
) -> Iterator[tuple[str, int, tf.Tensor]]:
    """Yields what an operation selects rows of: its name, how many rows it has, and the ids."""
    if op.type not in ("ResourceGather", "GatherV2", "ResourceGatherNd", "GatherNd"):
        return
    table, ids = op.inputs[:2]
    if table.dtype == tf.resource:
        if table.name not in tables:
            return
        name, shape = tables[table.name].name.partition(":")[0], tables[table.name].shape
    else:
        name, shape = table.op.name, table.shape
    if shape.rank is None:
        return
    if op.type.endswith("Nd"):  # Ids of several axes stand side by side.
        if ids.shape.rank:
            for axis in range(ids.shape[-1] or 0):
                if shape[axis] is not None:
                    yield name, shape[axis], ids[..., axis]
        return
    axis = op.get_attr("batch_dims")
    if op.type == "GatherV2":
        axis = tf.get_static_value(op.inputs[2])
    if axis is not None and shape[int(axis)] is not None:
        yield name, shape[int(axis)], ids


def _input_of(ids: tf.Tensor, inputs: Mapping[str, tf.Tensor]) -> str | None:
    """Returns the input whose values ids are; None where they are computed."""
    while ids.op.type in _PASSING and (ids.op.type != "Cast" or ids.dtype in (tf.int32, tf.int64)):
        ids = ids.op.inputs[0]
    return next((name for name, tensor in inputs.items() if tensor.name == ids.name), None)


def _follow(
    ids: tf.Tensor, inputs: Mapping[str, tf.Tensor]
) -> tuple[tuple[str, ...], set[str]] | None:
    """Returns the inputs that ids follow from, and the operations between by name.

    None where ids follow from anything else, such as variables or random numbers, or from no input.
    """
    names = {tensor.name: name for name, tensor in inputs.items()}
    waiting, sources, operations = [ids], set(), set()
    while waiting:
        tensor = waiting.pop()
        if tensor.name in names:
            sources.add(names[tensor.name])
        elif tensor.op.type.startswith("Placeholder") or tensor.op.op_def.is_stateful:
            return None
        elif tensor.op.name not in operations:
            operations.add(tensor.op.name)
            waiting += tensor.op.inputs
    return (tuple(sorted(sources)), operations) if sources else None


def _computing(
    graph: tf.Graph, ids: tf.Tensor, inputs: Mapping[str, tf.Tensor], operations: set[str]
) -> Callable[[Mapping[str, np.ndarray]], tuple[int, int]]:
    """Returns what computes the least and the largest id by the operations between, on the CPU."""
    whole = graph.as_graph_def()
    places = {tensor.op.name for tensor in inputs.values()}
    part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
    for node in whole.node:
        if node.name in operations or node.name in places:
            part.node.add().CopyFrom(node)
            kept = [source for source in node.input if not source.startswith("^")]
            part.node[-1].input[:] = kept
    specs = {name: tf.TensorSpec(t.shape, t.dtype) for name, t in inputs.items()}
    placed = {name: tensor.name for name, tensor in inputs.items()}
    wanted = ids.name

    @functools.cache
    def traced() -> Callable[[Mapping[str, tf.Tensor]], tuple[tf.Tensor, tf.Tensor]]:
        @tf.function(autograph=False, input_signature=[specs])
        def bounds(columns: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            by_place = {placed[name]: column for name, column in columns.items()}
            (made,) = tf.graph_util.import_graph_def(part, by_place, [wanted], name="ids")
            made = tf.cast(made, tf.int64)
            return tf.reduce_min(made), tf.reduce_max(made)

        return bounds

    def compute(columns: Mapping[str, np.ndarray]) -> tuple[int, int]:
        with tf.device("CPU:0"):
            least, most = traced()({name: tf.constant(v) for name, v in columns.items()})
        return int(least), int(most)

    return compute

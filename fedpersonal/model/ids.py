"""Checks of input values that follow from a model's graph: ids in the range of tables, assertions.

Code compiled by XLA reads another row for an id beyond a table's rows, and skips assertions,
without an error. Ids are therefore compared with the tables before anything runs. Where rows are
selected within functions and loops, and where the model asserts, these operations run once for each
data set without XLA.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
import tensorflow as tf

_GATHERS = ("ResourceGather", "GatherV2", "ResourceGatherNd", "GatherNd")
# Operations that leave an id unchanged.
_IDENTITIES = ("Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient")
# Number of examples checked at once where the model computes ids from its inputs.
_CHUNK = 2**14


class RowSelection(NamedTuple):
    """An operation that selects rows of a table by ids that depend on the inputs alone.

    Attributes:
        table: The table's name, for messages.
        rows: Number of its rows.
        inputs: The inputs that the ids depend on.
        compute: None if ids are the input's values; otherwise maps columns, input name to (n, ...),
            to the least and the largest id.
    """

    table: str
    rows: int
    inputs: tuple[str, ...]
    compute: Callable[[Mapping[str, np.ndarray]], tuple[int, int]] | None

    def find_wrong(self, columns: Mapping[str, np.ndarray]) -> tuple[int, str] | None:
        """Returns the first example whose computed id is not in the table, and an error text.

        Args:
            columns: Input name to (n, ...), in the dtype of the model's input.
        """
        return _first_wrong({name: columns[name] for name in self.inputs}, self._wrong_id)

    def _wrong_id(self, columns: Mapping[str, np.ndarray]) -> str | None:
        assert self.compute is not None
        least, most = self.compute(columns)
        if 0 <= least and most < self.rows:
            return None
        wrong = most if most >= self.rows else least
        return f"selects row {wrong} of {self.table!r}, which has rows 0 to {self.rows - 1}"


class ModelCheck(NamedTuple):
    """Operations of the model that raise errors for wrong values when run without XLA.

    Attributes:
        inputs: The inputs that they depend on.
        prepare: Returns a function that runs them: it maps columns, input name to (n, ...), to an
            error's text or None.
    """

    inputs: tuple[str, ...]
    prepare: Callable[[], Callable[[Mapping[str, np.ndarray]], str | None]]

    def find_wrong(self, columns: Mapping[str, np.ndarray]) -> tuple[int, str] | None:
        """Returns the first example that the model refuses, and the reason."""
        return _first_wrong({name: columns[name] for name in self.inputs}, self.prepare())


InputCheck = Union[RowSelection, ModelCheck]


def _first_wrong(
    columns: Mapping[str, np.ndarray], reason_of: Callable[[Mapping[str, np.ndarray]], str | None]
) -> tuple[int, str] | None:
    """Returns the first example with a reason for refusal, and the reason."""

    def reason(low: int, high: int) -> str | None:
        return reason_of({name: column[low:high] for name, column in columns.items()})

    count = len(next(iter(columns.values())))
    for start in range(0, count, _CHUNK):
        low, high = start, min(start + _CHUNK, count)
        first_reason = reason(low, high)
        while first_reason is not None and high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reason(low, middle) is not None else (middle, high)
        if first_reason is not None:
            return low, reason(low, high) or first_reason
    return None


def find_checks(
    inputs: Mapping[str, tf.Tensor], variables: Sequence[tf.Variable]
) -> tuple[InputCheck, ...]:
    """Finds where a graph selects rows by ids that depend on the inputs, and where it asserts.

    Args:
        inputs: Input name to placeholder, in a function's graph.
        variables: The graph's variables.
    """
    graph = next(iter(inputs.values())).graph
    handles = {id(v.handle): v for v in variables}
    captured = [(inner.name, handles.get(id(outer))) for outer, inner in graph.captures]
    tables = {name: variable for name, variable in captured if variable is not None}
    checks: list[InputCheck] = []
    for op in graph.get_operations():
        for name, rows, ids in _selections(op, tables):
            if source := _input_of(ids, inputs):
                checks.append(RowSelection(name, rows, (source,), None))
            elif dependencies := _dependencies(ids, inputs):
                sources, operations = dependencies
                compute = _id_bounds(graph, ids, {n: inputs[n] for n in sources}, operations)
                checks.append(RowSelection(name, rows, sources, compute))
    model_check = _find_model_check(graph, inputs, tables)
    return (*checks, model_check) if model_check else tuple(checks)


def _selections(
    op: tf.Operation, tables: Mapping[str, tf.Variable]
) -> Iterator[tuple[str, int, tf.Tensor]]:
    """Yields name, number of rows, and ids of each table that an operation selects rows of."""
    if op.type not in _GATHERS:
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
    if op.type.endswith("Nd"):  # The last axis has an id for each axis of the table.
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
    """Returns the input whose values the ids are; None if they are computed."""
    integers = (tf.int32, tf.int64)
    while ids.op.type in _IDENTITIES and (ids.op.type != "Cast" or ids.dtype in integers):
        ids = ids.op.inputs[0]
    return next((name for name, tensor in inputs.items() if tensor.name == ids.name), None)


def _dependencies(
    ids: tf.Tensor, inputs: Mapping[str, tf.Tensor]
) -> tuple[tuple[str, ...], set[str]] | None:
    """Returns the inputs that ids depend on, and the names of the operations between.

    Returns None if ids depend on anything else, such as variables or random numbers, or on no
    input.
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


def _id_bounds(
    graph: tf.Graph, ids: tf.Tensor, inputs: Mapping[str, tf.Tensor], operations: set[str]
) -> Callable[[Mapping[str, np.ndarray]], tuple[int, int]]:
    """Returns a function that computes the least and the largest id on the CPU.

    Args:
        graph: The model's graph.
        ids: The ids.
        inputs: Input name to placeholder, of the inputs that the ids depend on.
        operations: Names of the operations between.
    """
    whole = graph.as_graph_def()
    places = {tensor.op.name for tensor in inputs.values()}
    part = _extract(whole, operations | places)
    specs = {name: tf.TensorSpec(t.shape, t.dtype) for name, t in inputs.items()}
    placed = {name: tensor.name for name, tensor in inputs.items()}
    ids_name = ids.name

    @functools.cache
    def traced() -> Callable[[Mapping[str, tf.Tensor]], tuple[tf.Tensor, tf.Tensor]]:
        @tf.function(autograph=False, input_signature=[specs])
        def bounds(columns: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            by_place = {placed[name]: column for name, column in columns.items()}
            (computed,) = tf.graph_util.import_graph_def(part, by_place, [ids_name], name="ids")
            computed = tf.cast(computed, tf.int64)
            return tf.reduce_min(computed), tf.reduce_max(computed)

        return bounds

    def compute(columns: Mapping[str, np.ndarray]) -> tuple[int, int]:
        with tf.device("CPU:0"):
            least, most = traced()({name: tf.constant(v) for name, v in columns.items()})
        return int(least), int(most)

    return compute


def _extract(whole: Any, operations: Collection[str]) -> Any:
    """Extracts operations by name from a graph's definition, without control dependencies."""
    part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
    for node in whole.node:
        if node.name in operations:
            part.node.add().CopyFrom(node)
            kept = [source for source in node.input if not source.startswith("^")]
            part.node[-1].input[:] = kept
    return part


def _find_model_check(
    graph: tf.Graph, inputs: Mapping[str, tf.Tensor], tables: Mapping[str, tf.Variable]
) -> ModelCheck | None:
    """Finds assertions, and functions and loops that select rows or assert."""
    whole = graph.as_graph_def()
    calling = _refusing_functions(whole.library.function)
    nodes = {node.name: node for node in whole.node}
    by_place = {tensor.op.name: name for name, tensor in inputs.items()}
    checks, operations, sources = [], set(), set()
    for node in whole.node:
        if node.op == "Assert" or node.op in calling or _named_functions(node) & calling:
            before = _ancestors(node.name, nodes)
            of_inputs = {by_place[name] for name in before & by_place.keys()}
            # Variables have no values yet.
            is_of_values = node.op == "Assert" and any(f"{name}:0" in tables for name in before)
            if of_inputs and not is_of_values:
                checks.append(node.name)
                operations |= before
                sources |= of_inputs
    if not checks:
        return None
    names = tuple(sorted(sources))
    part = _extract(whole, operations)
    captured = {inner.name: outer for outer, inner in graph.captures if inner.op.name in operations}
    specs = {name: tf.TensorSpec(inputs[name].shape, inputs[name].dtype) for name in names}

    def prepare() -> Callable[[Mapping[str, np.ndarray]], str | None]:
        zeros = {
            name: tf.Variable(tf.zeros(tables[name].shape, tables[name].dtype))
            for name in captured.keys() & tables.keys()
        }

        @tf.function(autograph=False, input_signature=[specs])
        def run(columns: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
            values: dict[str, Any] = {inputs[name].name: v for name, v in columns.items()}
            graph: Any = tf.compat.v1.get_default_graph()
            for name, outer in captured.items():
                values[name] = graph.capture(zeros[name].handle if name in zeros else outer)
            imported = tf.graph_util.import_graph_def(part, values, checks, name="checks")
            with tf.control_dependencies(imported):  # Without dependants they would not run.
                return [tf.identity(tensor) for op in imported for tensor in op.outputs]

        def reason_of(columns: Mapping[str, np.ndarray]) -> str | None:
            try:
                with tf.device("CPU:0"):
                    run({name: tf.constant(v) for name, v in columns.items()})
            except tf.errors.InvalidArgumentError as error:
                return f"is refused by the model: {_reason(error)}"
            return None

        return reason_of

    return ModelCheck(names, prepare)


def _refusing_functions(functions: Iterable[Any]) -> set[str]:
    """Returns the names of functions that select rows or assert."""
    refusing: set[str] = set()
    while True:
        more = {
            function.signature.name
            for function in functions
            for node in function.node_def
            if node.op in ("Assert", *_GATHERS)
            or node.op in refusing
            or _named_functions(node) & refusing
        }
        if more <= refusing:
            return refusing
        refusing |= more


def _named_functions(node: Any) -> set[str]:
    values = node.attr.values()
    named = {v.func.name for v in values if v.HasField("func")}
    return named | {f.name for v in values if v.HasField("list") for f in v.list.func}


def _ancestors(name: str, nodes: Mapping[str, Any]) -> set[str]:
    """Returns the names of an operation and of all operations that it depends on."""
    ancestors, waiting = set(), [name]
    while waiting:
        one = waiting.pop()
        if one not in ancestors:
            ancestors.add(one)
            inputs = (source for source in nodes[one].input if not source.startswith("^"))
            waiting += [source.partition(":")[0] for source in inputs]
    return ancestors


def _reason(error: tf.errors.OpError) -> str:
    """Returns the line of an error's text that describes the error."""
    lines = [re.sub(r"\{\{.*?\}\}", "", line).strip() for line in error.message.splitlines()]
    passing = ("Graph execution error", "Detected at node", "<stack traces", "[[")
    return next((line for line in lines if line and not line.startswith(passing)), "an assertion")

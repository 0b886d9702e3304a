"""Captures of TensorFlow code: tensors, variables and tables that are created outside of it.

A computation is sent to other processes, which lack these objects. Their values are read when the
computation is traced, and become its constants.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from fedpersonal.errors import UserError

_TABLES = (tf.lookup.StaticHashTable, tf.lookup.experimental.MutableHashTable)
_tracing = threading.local()


def trace(fn: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Callable[..., Any]:
    """Traces TensorFlow code of flat arguments as a function that captures nothing.

    Returns:
        A function of these arguments, to be called in a graph, with the `structured_outputs` of a
        concrete function.

    Raises:
        UserError: If the code uses a resource whose value cannot be read, or assigns to it.
    """

    @tf.function(input_signature=list(specs), autograph=False)
    def flat_fn(*flat: tf.Tensor) -> Any:
        return fn(*flat)

    with _reading_values():
        concrete = flat_fn.get_concrete_function()
    _check_resources(concrete.graph)
    _check_python(concrete.graph.as_graph_def())
    values = [tensor.numpy() for tensor in concrete.captured_inputs]

    def call(*flat: tf.Tensor) -> Any:
        concrete.set_external_captures([tf.constant(value) for value in values])
        return concrete(*flat)

    traced: Any = call
    traced.structured_outputs = concrete.structured_outputs
    return traced


def _check_resources(graph: tf.Graph) -> None:
    resources = {id(inner) for outer, inner in graph.captures if outer.dtype == tf.resource}
    for operation in graph.get_operations():
        if resources.intersection(map(id, operation.inputs)):
            raise UserError(
                "the model, loss or a metric looks texts up in a table, or assigns to a variable, "
                f"that was created outside of it ({operation.type} {operation.name!r}): clients "
                "have neither. Look texts up in the data beforehand, and leave assignments out."
            )


def _check_python(graph_def: tf.compat.v1.GraphDef) -> None:
    for nodes in (graph_def.node, *(one.node_def for one in graph_def.library.function)):
        for node in nodes:
            if "PyFunc" in node.op:
                raise UserError(
                    f"the model, loss or a metric runs Python code ({node.op} {node.name!r}, of "
                    "tf.py_function or tf.numpy_function), which is not sent to clients: write it "
                    "in TensorFlow operations."
                )


@contextlib.contextmanager
def _reading_values() -> Iterator[None]:
    """Makes this thread read variables and hash tables of numbers outside of graphs."""
    former = getattr(_tracing, "values", None)
    _tracing.values = {} if former is None else former
    try:
        yield
    finally:
        _tracing.values = former


def _value_of(variable: BaseResourceVariable) -> tf.Tensor | None:
    """Returns the value of a variable from outside of graphs while tracing, else None."""
    values = getattr(_tracing, "values", None)
    if values is None or not isinstance(variable._handle, EagerTensor):
        return None
    with tf.init_scope():
        if id(variable) not in values and tf.executing_eagerly():
            # The variable is kept alive, since another variable could reuse its id.
            read = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            values[id(variable)] = variable, read
    return values[id(variable)][1] if id(variable) in values else None


def _with_value(read: Callable[..., Any], apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a variable's method to apply a function to its value, if `_value_of` returns one."""

    @functools.wraps(read)
    def read_or_apply(self: BaseResourceVariable, *args: Any, **options: Any) -> Any:
        value = _value_of(self)
        return read(self, *args, **options) if value is None else apply(value, *args, **options)

    return read_or_apply


def _with_constants(lookup: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Wraps a table's method to look integers up in constants while tracing."""

    @functools.wraps(lookup)
    def look_up(self: Any, keys: tf.Tensor, *more: Any, **options: Any) -> tf.Tensor:
        is_plain = isinstance(keys, tf.Tensor) and not more and not options
        is_traced = getattr(_tracing, "values", None) is not None
        if not (is_traced and is_plain and self.key_dtype.is_integer):
            return lookup(self, keys, *more, **options)
        with tf.init_scope():
            if not tf.executing_eagerly():
                return lookup(self, keys)
            table_keys, values = (np.asarray(part) for part in self.export())
            default = np.asarray(self._default_value)
        return _look_up(tf.cast(keys, self.key_dtype), table_keys, values, default)

    return look_up


def _look_up(
    keys: tf.Tensor, table_keys: np.ndarray, values: np.ndarray, default: np.ndarray
) -> tf.Tensor:
    if not table_keys.size:
        return tf.fill(tf.shape(keys), tf.constant(default))
    order = np.argsort(table_keys)
    places = tf.searchsorted(table_keys[order], tf.reshape(keys, [-1]))
    places = tf.reshape(tf.minimum(places, table_keys.size - 1), tf.shape(keys))
    is_in_table = tf.equal(tf.gather(table_keys[order], places), keys)
    results = tf.where(is_in_table, tf.gather(values[order], places), default)
    return tf.ensure_shape(results, keys.shape)


for _table in _TABLES:
    _table.lookup = _with_constants(_table.lookup)

BaseResourceVariable._read_variable_op = _with_value(
    BaseResourceVariable._read_variable_op, lambda value, *_, **__: value
)
BaseResourceVariable.sparse_read = _with_value(BaseResourceVariable.sparse_read, tf.gather)
BaseResourceVariable.gather_nd = _with_value(BaseResourceVariable.gather_nd, tf.gather_nd)

"""What TensorFlow code uses but has not made: tensors, variables and tables of the program around.

A computation is sent to other processes, which have none of these. Their values are read when it is
traced, and become constants of it.
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
                "the model, loss or a metric looks texts up in a table that was made elsewhere, or "
                f"assigns to a variable that was ({operation.type} {operation.name!r}): clients "
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
    """Has variables and hash tables of numbers read outside of graphs, in this thread."""
    former = getattr(_tracing, "values", None)
    _tracing.values = {} if former is None else former
    try:
        yield
    finally:
        _tracing.values = former


def _value_of(variable: BaseResourceVariable) -> tf.Tensor | None:
    """Returns the value of a variable that was made outside of graphs, where it is to be read."""
    values = getattr(_tracing, "values", None)
    if values is None or not isinstance(variable._handle, EagerTensor):
        return None
    with tf.init_scope():
        if id(variable) not in values and tf.executing_eagerly():
            # The variable stays alive: another one could have its id.
            read = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            values[id(variable)] = variable, read
    return values[id(variable)][1] if id(variable) in values else None


def _of_value(read: Callable[..., Any], of_value: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def read_or_value(self: BaseResourceVariable, *args: Any, **options: Any) -> Any:
        value = _value_of(self)
        return read(self, *args, **options) if value is None else of_value(value, *args, **options)

    return read_or_value


def _with_constants(lookup: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    @functools.wraps(lookup)
    def looked_up(self: Any, keys: tf.Tensor, *more: Any, **options: Any) -> tf.Tensor:
        is_plain = isinstance(keys, tf.Tensor) and not more and not options
        is_traced = getattr(_tracing, "values", None) is not None
        if not (is_traced and is_plain and self.key_dtype.is_integer):
            return lookup(self, keys, *more, **options)
        with tf.init_scope():
            if not tf.executing_eagerly():
                return lookup(self, keys)
            known, values = (np.asarray(part) for part in self.export())
            default = np.asarray(self._default_value)
        return _look_up(tf.cast(keys, self.key_dtype), known, values, default)

    return looked_up


def _look_up(
    keys: tf.Tensor, known: np.ndarray, values: np.ndarray, default: np.ndarray
) -> tf.Tensor:
    if not known.size:
        return tf.fill(tf.shape(keys), tf.constant(default))
    order = np.argsort(known)
    places = tf.searchsorted(known[order], tf.reshape(keys, [-1]))
    places = tf.reshape(tf.minimum(places, known.size - 1), tf.shape(keys))
    is_known = tf.equal(tf.gather(known[order], places), keys)
    found = tf.where(is_known, tf.gather(values[order], places), default)
    return tf.ensure_shape(found, keys.shape)


for _table in _TABLES:
    _table.lookup = _with_constants(_table.lookup)

BaseResourceVariable._read_variable_op = _of_value(
    BaseResourceVariable._read_variable_op, lambda value, *_, **__: value
)
BaseResourceVariable.sparse_read = _of_value(BaseResourceVariable.sparse_read, tf.gather)
BaseResourceVariable.gather_nd = _of_value(BaseResourceVariable.gather_nd, tf.gather_nd)

"""A tensor in place of a Keras variable, for models whose builder assigns to variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable


class StandInVariable(BaseResourceVariable):
    """A substitute for a Keras model's variable that holds a tensor.

    Reading it returns the tensor. Assigning does nothing: the initial values that the model's
    builder assigns were recorded when the model was inspected.
    """

    def __init__(
        self, initial_value: tf.Tensor, name: str | None, trainable: bool | None, constraint: Any
    ):
        """Takes the value, and the other arguments of `tf.Variable`."""
        super().__init__(
            shape=initial_value.shape,
            dtype=initial_value.dtype,
            trainable=trainable,
            constraint=constraint,
            handle=initial_value,
            handle_name=name or "Variable",
            unique_id=f"stand_in_{id(self)}",
            in_graph_mode=False,
        )
        self._value = initial_value

    def value(self) -> tf.Tensor:
        """Returns the tensor."""
        return self._value

    def read_value(self) -> tf.Tensor:
        """Returns the tensor."""
        return self._value

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns slices of the tensor."""
        return tf.gather(self._value, indices, name=name)

    def gather_nd(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns slices of the tensor."""
        return tf.gather_nd(self._value, indices, name=name)

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        del no_copy
        return self._value

    def _dense_var_to_tensor(self, dtype=None, name=None, as_ref=False) -> Any:
        del name, as_ref
        is_same = dtype is None or tf.as_dtype(dtype) == self._value.dtype
        return self._value if is_same else NotImplemented

    def assign(self, value: Any, use_locking=None, name=None, read_value=True) -> StandInVariable:
        """Does nothing."""
        del value, use_locking, name, read_value
        return self

    assign_add = assign_sub = assign

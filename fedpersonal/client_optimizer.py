"""A TFF optimizer for a stack of clients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fedpersonal.client_values import over_clients, tile_clients, where_client
from fedpersonal.partition import PartitionedModel, Values


class _RunTimeSpec:
    """Stands in for a `tf.TensorSpec`: a table's number of touched rows is known at run time."""

    def __init__(self, value: tf.Tensor):
        is_static = value.shape.is_fully_defined()
        self.shape = value.shape if is_static else tf.shape(value)
        self.dtype = value.dtype


class ClientOptimizer:
    """A TFF optimizer that steps a stack of clients, each with a state of its own."""

    def __init__(self, optimizer: Any, values: Values, model: PartitionedModel):
        self._optimizer = optimizer
        self._tables = [name for name in values if name in model.tables]
        state = optimizer.initialize({k: _RunTimeSpec(v[0]) for k, v in values.items()})
        if self._tables and "weight_decay" in state:
            raise ValueError(
                f"weight decay moves rows that a client never touches; {self._tables} cannot be "
                "lookups with this optimizer."
            )
        # Plain SGD is linear in the gradient and keeps no state: rows can be stepped one by one.
        self._is_plain_sgd = list(state) == ["learning_rate"]
        clients = tf.shape(next(iter(values.values())))[0]
        self._constant_state = state
        self.initial_state = (
            ()
            if self._is_plain_sgd
            else tf.nest.map_structure(
                lambda s: tile_clients(tf.convert_to_tensor(s), clients), state
            )
        )

    def private_copies(self, values: Values) -> Values:
        """Copies what steps change in place, so that nothing else sees it change."""
        if not self._is_plain_sgd:
            return values
        return {k: tf.raw_ops.DeepCopy(x=v) if k in self._tables else v for k, v in values.items()}

    def next(self, state, values, stepped, gradients, positions, is_active):
        """Takes one step.

        Args:
            state: The clients' optimizer states.
            values: The moving values, (C, ...); of tables the touched rows (C, R, ...).
            stepped: The same, but of tables the batch's rows (C, T, ...).
            gradients: Gradients with respect to `stepped`.
            positions: Table name to int32 (C, T), the batch's rows among the touched ones.
            is_active: float32 (C,), 1 where a client takes this step; gradients are 0 elsewhere.

        Returns:
            The new values and the new states.
        """
        if self._is_plain_sgd:
            _, moved = self._optimizer.next(self._constant_state, stepped, gradients)
            new = dict(moved)
            for name in self._tables:
                new[name] = _add_rows(values[name], positions[name], moved[name] - stepped[name])
            return new, state
        dense = dict(gradients)
        for name in self._tables:
            dense[name] = _sum_rows(values[name], positions[name], gradients[name])
        new_state, new = over_clients(lambda e: self._optimizer.next(*e), (state, values, dense))
        return tf.nest.map_structure(
            lambda after, before: where_client(is_active > 0, after, before),
            (dict(new), new_state),
            (values, state),
        )


def _add_rows(tables: tf.Tensor, positions: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Adds rows (C, T, ...) to tables (C, R, ...), in place, at positions (C, T).

    TensorFlow's pure scatter copies the whole table at every step. The tables must be the loop's
    own copy, read by nothing that may run after this.
    """
    shape = tf.shape(tables)
    clients = tf.range(shape[0])[:, tf.newaxis] * shape[1]
    flat = tf.reshape(tables, tf.concat([[-1], shape[2:]], 0))
    flat_rows = tf.reshape(rows, tf.concat([[-1], shape[2:]], 0))
    added = tf.raw_ops.InplaceAdd(x=flat, i=tf.reshape(clients + positions, [-1]), v=flat_rows)
    return tf.ensure_shape(tf.reshape(added, shape), tables.shape)


def _sum_rows(tables: tf.Tensor, positions: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Sums rows (C, T, ...) by their positions (C, T) into zeros shaped like tables (C, R, ...)."""
    clients = tf.broadcast_to(tf.range(tf.shape(positions)[0])[:, tf.newaxis], tf.shape(positions))
    return tf.scatter_nd(tf.stack([clients, positions], axis=-1), rows, tf.shape(tables))

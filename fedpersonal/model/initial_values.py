"""Initial values of variables, drawn by the layers' own initializers from a seed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import tensorflow as tf

Initializer = Callable[[tf.Tensor], tf.Tensor]


class _SeededDraws:
    """Stands in for the random generator inside a Keras initializer; draws from a tensor seed."""

    def __init__(self, seed: tf.Tensor):
        self._seed = seed

    def random_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, nonce=None):
        del nonce
        return tf.random.stateless_normal(shape, self._seed, mean, stddev, dtype)

    def random_uniform(self, shape, minval=0.0, maxval=None, dtype=tf.float32, nonce=None):
        del nonce
        return tf.random.stateless_uniform(shape, self._seed, minval, maxval, dtype)

    def truncated_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, nonce=None):
        del nonce
        return tf.random.stateless_truncated_normal(shape, self._seed, mean, stddev, dtype)


def seeded_initializer(initial_value: Any, shape: tuple[int, ...], dtype: tf.DType) -> Initializer:
    """Turns what Keras gives a new variable as its value into a function of a seed.

    It gives a value, a function that returns one, or a Keras initializer with its arguments bound.
    The function's seed is int32 of shape (2,); it needs a graph.
    """
    initializer: Any = getattr(initial_value, "func", None)

    def draw(seed: tf.Tensor) -> tf.Tensor:
        if hasattr(initializer, "_random_generator"):
            seeded = copy.copy(initializer)
            seeded._random_generator = _SeededDraws(seed)
            seeded._used = False  # Else Keras warns of equal values, which the seed sees to.
            value = seeded(shape, dtype=dtype)
        else:
            value = initial_value() if callable(initial_value) else initial_value
        return tf.ensure_shape(tf.cast(value, dtype), shape)

    return draw

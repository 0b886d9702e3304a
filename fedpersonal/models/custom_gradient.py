"""`tf.custom_gradient` for models, without its hold on their graphs."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.framework import ops

Gradient = Callable[..., "tf.Tensor | tuple[tf.Tensor, ...]"]


def custom_gradient(
    function: Callable[..., tuple[tf.Tensor, Gradient]],
) -> Callable[..., tf.Tensor]:
    """Does what `tf.custom_gradient` does, and lets the graph be freed after use.

    TensorFlow registers the gradient of each call in a graph for as long as the process lives, and
    the gradient holds the graph: a program that traces one model after another would keep them all.

    Args:
        function: Returns one tensor and the function of its gradient.
    """

    @functools.wraps(function)
    def call(*arguments: tf.Tensor) -> tf.Tensor:
        result = tf.custom_gradient(function)(*arguments)
        if not tf.executing_eagerly():
            _leave_to_graph(result)
        return result

    return call


def _leave_to_graph(result: tf.Tensor) -> None:
    """Has a graph keep the gradient of its tensor, and TensorFlow's registry only know of it."""
    name = result.op.get_attr("_gradient_op_type").decode()
    registered = ops.gradient_registry._registry
    gradient = registered[name]["type"]
    graph = result.graph
    graph._custom_gradients = [*getattr(graph, "_custom_gradients", ()), gradient]
    registered[name]["type"] = functools.partial(_call, weakref.ref(gradient))
    weakref.finalize(gradient, registered.pop, name, None).atexit = False


def _call(gradient: weakref.ref[Gradient], *given: object) -> object:
    known = gradient()
    assert known is not None  # Else its name is registered no more.
    return known(*given)

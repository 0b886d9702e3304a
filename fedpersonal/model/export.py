"""A partitioned model as a plain Keras model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from fedpersonal.model.partition import PartitionedModel


def to_keras(model: PartitionedModel, values: Mapping[str, np.ndarray]) -> tf.keras.Model:
    """Builds the Keras model and gives it values.

    Args:
        model: The partitioned model.
        values: Variable's name to value, of all but the frozen ones.

    Returns:
        A Keras model of its own, which trains, predicts and saves as any other.
    """
    created: list[tf.Variable] = []

    def record(next_creator, **kwargs):
        created.append(next_creator(**kwargs))
        return created[-1]

    with tf.variable_creator_scope(record):
        built = model.build()
        empty = {
            name: tf.zeros([1, *(size or 1 for size in spec.shape[1:])], spec.dtype)
            for name, spec in model.input_spec.items()
        }
        built(model.arrange(empty))
    # Its optimizer and its metrics have variables, too.
    own = {variable.ref() for variable in built.weights}
    for variable, spec in zip((v for v in created if v.ref() in own), model.all_variables):
        value = model.frozen.array(spec.name) if spec.is_frozen else values[spec.name]
        variable.assign(value)
    return built

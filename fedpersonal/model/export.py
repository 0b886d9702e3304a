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
    values, created = model.applied(values), []

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
    weights = {variable.ref() for variable in built.weights}
    own = [variable for variable in created if variable.ref() in weights]
    if [tuple(v.shape) for v in own] != [spec.shape for spec in model.all_variables]:
        raise ValueError(
            f"the Keras model has the variables {[v.name for v in own]}, the partitioned model "
            f"{[spec.name for spec in model.all_variables]}."
        )
    for variable, spec in zip(own, model.all_variables):
        variable.assign(model.frozen.array(spec.name) if spec.is_frozen else values[spec.name])
    return built

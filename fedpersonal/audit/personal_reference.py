"""A plain round's gradients where a client has personal copies, by the chain rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import tensorflow as tf

from fedpersonal.model.names import MIXING
from fedpersonal.model.partition import PartitionedModel

Gradients = dict[str, tf.Tensor]
Sums = dict[str, tf.Tensor]


def gradients_of(
    model: PartitionedModel,
    variables: Mapping[str, tf.Variable],
    moving: Collection[str],
    differentiate: Callable[[tuple[str, ...]], tuple[Gradients, Sums]],
) -> tuple[Gradients, Sums]:
    """Differentiates a batch's loss by variables that move, some of which may be personal.

    Args:
        model: The partitioned model.
        variables: All variables, those of the Keras model among them.
        moving: The names of those that move.
        differentiate: Maps names of the Keras model's variables to the loss' gradients with the
            values that they have, and to metric sums.
    """
    copied = set(model.copies.values())
    own = {*moving} & {*model.copies, MIXING}
    plain = tuple(name for name in moving if name not in own)
    if not own:
        return differentiate(plain)
    gradients, sums = differentiate(plain) if copied & {*plain} else ({}, {})
    shared = {name: variables[name].numpy() for name in copied}
    alpha = variables[MIXING].numpy() if MIXING in variables else 1.0
    copies = {source: variables[name].numpy() for name, source in model.copies.items()}
    for name, value in copies.items():
        # A row stands in for the whole table.
        whole = np.broadcast_to(value, shared[name].shape)
        variables[name].assign(alpha * whole + (1.0 - alpha) * shared[name])
    rest = tuple(name for name in plain if name not in copied)
    slopes, personal_sums = differentiate((*copied, *rest))
    for name, value in shared.items():
        variables[name].assign(value)
    for name in rest:
        gradients[name] = gradients.get(name, 0.0) + slopes[name]
    for name in own - {MIXING}:
        slope = alpha * slopes[model.copies[name]]
        is_row = name in model.own_rows
        gradients[name] = tf.reduce_sum(slope, 0, keepdims=True) if is_row else slope
    if MIXING in own:
        along = [tf.reduce_sum((copies[k] - shared[k]) * slopes[k]) for k in sorted(copied)]
        gradients[MIXING] = tf.add_n(along)
    return gradients, sums or personal_sums

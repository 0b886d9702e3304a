"""A model whose data count for nothing, and data that differ where nothing may be seen of it.

With its data loss multiplied by 0, a model's global variables move by what it declares apart from
data alone. Whatever is still sent of local variables or labels has not come through the loss.
"""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import tensorflow as tf

from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.variables import VariableSpec


def severed(model: PartitionedModel) -> PartitionedModel:
    """Returns a model without its data loss, its metrics and its examples' weights.

    Losses that it adds stay. What examples weigh by their labels is sent by declaration.
    Its local variables start at random, so that they differ where examples do, even if they usually
    start as zeros. Exact reconstruction, which takes no loss, still fits them to the labels.
    """
    cut, loss = copy.copy(model), model._example_loss
    cut._example_loss = lambda labels, predictions: 0.0 * loss(labels, predictions)
    cut.metrics, cut.example_weight = (), None
    for group in ("variables", "global_variables", "local_variables", "all_variables"):
        variables = getattr(model, group)
        setattr(cut, group, tuple(_random_start(v) if v.is_local else v for v in variables))
    return cut


def _random_start(variable: VariableSpec) -> VariableSpec:
    def draw(seed: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.random.stateless_normal(variable.shape, seed, stddev=0.5), variable.dtype)

    return dataclasses.replace(variable, initializer=draw)


def other_labels(
    model: PartitionedModel, labels: np.ndarray, pool: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Returns other labels of the same examples, which count as often as before.

    Where each label has a weight of its own, that is the same labels in another order.

    Args:
        model: The model, whose `example_weight` says as how many an example counts.
        labels: (n, ...).
        pool: Labels to draw from, (m, ...).
        random: The draws.
    """
    # 0 and negative labels often stand for padding, where one may count otherwise.
    for values, may_change in (
        (np.unique(pool), np.ones(labels.shape, bool)),
        (np.unique(pool[pool > 0]), labels > 0),
    ):
        if not values.size:
            continue
        changed = np.where(may_change, _others(labels, values, random), labels)
        weights = [
            model.example_weights(tf.constant(column)).numpy() for column in (labels, changed)
        ]
        if np.array_equal(*weights):
            return changed.astype(labels.dtype)
    return random.permutation(labels)


def any_labels(labels: np.ndarray, pool: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns other labels of as many examples, each drawn from a pool."""
    return _others(labels, np.unique(pool), random).astype(labels.dtype)


def _others(labels: np.ndarray, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws for each label one of the values, another one where there are others."""
    place = np.searchsorted(values, labels) + random.integers(1, max(2, values.size), labels.shape)
    return values[place % values.size]

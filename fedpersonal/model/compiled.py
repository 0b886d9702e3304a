"""A Keras model instead of its builder, and what a model was compiled with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError


class CompileOptions(NamedTuple):
    """What `compile` was called with, as the user gave it; the optimizer is of no use here."""

    loss: object
    metrics: object
    ignored: tuple[str, ...]


def compile_options(model: tf.keras.Model) -> CompileOptions | None:
    """Returns what a model was compiled with, or None if it was not."""
    if not getattr(model, "_is_compiled", False):
        return None
    options = model._get_compile_args()
    ignored = [k for k in ("loss_weights", "weighted_metrics") if options.get(k)]
    return CompileOptions(_only(options["loss"], "loss"), options["metrics"], tuple(ignored))


def _only(value: object, what: str) -> object:
    """Takes the one loss of a model with one output out of its list or dict."""
    values = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(values, (list, tuple)):
        return values
    if len(values) > 1:
        raise UserError(f"the model is compiled with {len(values)} of {what}; it needs one.")
    return values[0] if values else None


def builder_of(model: tf.keras.Model) -> tuple[Callable[[], tf.keras.Model], list[np.ndarray]]:
    """Returns a builder of copies of a model, and the values of its weights.

    A model's weights keep their order in a copy made from its configuration, so the copies can
    start from them exactly.

    Raises:
        UserError: If Keras cannot copy it, as most models that subclass `tf.keras.Model`.
    """
    try:
        with tf.Graph().as_default():
            copied = tf.keras.models.clone_model(model)
    except Exception as error:
        raise _not_copied(model, str(error).splitlines()[0]) from error
    if [w.shape for w in copied.weights] != [w.shape for w in model.weights]:
        raise _not_copied(model, "its copy has other weights")
    return lambda: tf.keras.models.clone_model(model), model.get_weights()


def _not_copied(model: tf.keras.Model, reason: str) -> UserError:
    return UserError(
        f"{model.name!r} cannot be copied ({reason}). Give a function that builds it instead: "
        "PartitionedModel(lambda: build(), ...)."
    )

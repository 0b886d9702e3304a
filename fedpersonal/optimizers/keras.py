"""Keras optimizers as those of TensorFlow Federated that take the same steps."""

from __future__ import annotations

import functools
from typing import Union

import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.errors import UserError

AnyOptimizer = Union[tff.learning.optimizers.Optimizer, tf.keras.optimizers.Optimizer]

_BUILD = "tff.learning.optimizers.build_"
# What to give instead of an optimizer whose steps differ, if only in the last digits.
_NEAREST = {
    "RMSprop": f"{_BUILD}rmsprop, which adds epsilon outside of the root",
    "Nadam": f"{_BUILD}adam",
    "Adamax": f"{_BUILD}adam",
    "Adafactor": f"{_BUILD}adafactor",
    "Adadelta": f"{_BUILD}adagrad",
    "Ftrl": f"{_BUILD}adagrad",
}


def as_tff_optimizer(optimizer: AnyOptimizer) -> tff.learning.optimizers.Optimizer:
    """Returns an optimizer as it is, or of a Keras one its counterpart.

    SGD (with momentum), Adam, AdamW and Adagrad have one that takes the same steps, but for
    rounding. One Keras object always gives the same counterpart.

    Raises:
        UserError: If there is none, or an option is set that it does not have.
    """
    legacy = tf.keras.optimizers.legacy.Optimizer
    if isinstance(optimizer, (tf.keras.optimizers.Optimizer, legacy)):
        return _counterpart(optimizer)
    if not (hasattr(optimizer, "initialize") and hasattr(optimizer, "next")):
        raise UserError(
            f"{optimizer!r} is no optimizer: give one of tff.learning.optimizers, such as "
            f"{_BUILD}sgdm(0.1), or of tf.keras.optimizers."
        )
    return optimizer


@functools.lru_cache(maxsize=256)
def _counterpart(optimizer: tf.keras.optimizers.Optimizer) -> tff.learning.optimizers.Optimizer:
    kind, options = type(optimizer).__name__, optimizer.get_config()
    rate = options.pop("learning_rate")
    nearest = _NEAREST.get(kind, f"{_BUILD}sgdm or {_BUILD}adam")
    if isinstance(rate, dict):
        raise UserError(
            f"Keras optimizer {kind}: a learning rate that changes counts steps, and clients start "
            "anew in each round. Give fedpersonal.optimizers.rate_schedule.ScheduledOptimizer."
        )
    taken = {key: options.pop(key) for key in ("beta_1", "beta_2", "epsilon") if key in options}
    taken["learning_rate"] = float(rate)
    builders = tff.learning.optimizers
    if kind == "SGD":
        result = builders.build_sgdm(**taken, momentum=float(options.pop("momentum")) or None)
    elif kind == "Adam":
        result = builders.build_adam(**taken)
    elif kind == "AdamW":
        result = builders.build_adamw(**taken, weight_decay=options.pop("weight_decay") or 0.0)
    elif kind == "Adagrad":
        start = options.pop("initial_accumulator_value")
        result = builders.build_adagrad(**taken, initial_preconditioner_value=start)
    else:
        raise UserError(
            f"Keras optimizer {kind} has no counterpart that takes the same steps. Give {nearest}."
        )
    harmless = ("name", "jit_compile", "is_legacy_optimizer", "ema_momentum")
    used = {key: value for key, value in options.items() if value and key not in harmless}
    if not options.get("use_ema"):
        used.pop("ema_overwrite_frequency", None)
    if getattr(optimizer, "_exclude_from_weight_decay", None):
        used["exclude_from_weight_decay"] = "..."
    if used:
        listed = ", ".join(f"{key}={value}" for key, value in used.items())
        raise UserError(
            f"Keras optimizer {kind}: {listed} has no counterpart in tff.learning.optimizers; "
            f"leave it out."
        )
    return result

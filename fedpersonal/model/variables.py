"""A model's variables before they have values, and the names by which they are chosen."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.keras import with_generator

# A list of more names than this hides what it is to show.
_MAX_LISTED = 40


@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """What is known of a variable before it has a value.

    Attributes:
        name: Keras' name of the variable, without the output suffix, such as `item/embeddings`.
        layer: Name of the top-level layer that owns it.
        shape: Its static shape.
        dtype: Its dtype.
        is_local: Whether it stays with its client.
        initializer: Maps an int32 seed of shape (2,) to an initial value, in a graph.
        names: The names that choose it, the most specific first: its own, those of the nested
            layers around it, such as `encoder/head`, and that of its top-level layer.
        is_frozen: Whether it never moves.
        is_personal: Whether it belongs to a client's personal copies (`model.personal`).
        is_replaced: Whether what clients send for it comes of their copies: no phase moves it.
    """

    name: str
    layer: str
    shape: tuple[int, ...]
    dtype: tf.DType
    is_local: bool
    initializer: Callable[[tf.Tensor], tf.Tensor]
    names: tuple[str, ...] = ()
    is_frozen: bool = False
    is_personal: bool = False
    is_replaced: bool = False

    @property
    def size(self) -> int:
        """Number of scalars."""
        return int(np.prod(self.shape, dtype=np.int64))

    def first_name(self, names: Iterable[str]) -> str | None:
        """Returns the most specific of `names` that chooses the variable, or None."""
        chosen = set(names)
        return next((name for name in self.names if name in chosen), None)


def check_names(owner: str, names: Iterable[str], variables: Sequence[VariableSpec]) -> None:
    """Raises a UserError, which begins with `owner`, unless each name chooses a variable."""
    known = dict.fromkeys(name for v in variables for name in reversed(v.names))
    for name in names:
        if name in known:
            continue
        near = difflib.get_close_matches(str(name), known, n=3)
        layers = dict.fromkeys(v.layer for v in variables)
        listed = list(known if len(known) <= _MAX_LISTED else layers)
        raise UserError(
            f"{owner}: {name!r} names no variable of the model"
            + (f"; did you mean {' or '.join(map(repr, near))}?" if near else ".")
            + f" It can be one of {listed}."
        )


def split_variables(
    variables: Sequence[VariableSpec], local: Sequence[str], frozen: Sequence[str]
) -> tuple[VariableSpec, ...]:
    """Says of each variable whether it is local, frozen, or neither.

    Where both name it, as with a frozen `encoder` and a local `encoder/head`, the more specific
    name counts.

    Raises:
        UserError: If a name chooses nothing, or is in both.
    """
    check_names("local_layers", local, variables)
    check_names("frozen_layers", frozen, variables)
    both = sorted(set(local) & set(frozen))
    if both:
        raise UserError(f"layer {both[0]!r} is named local and frozen; it can be one of them.")
    kinds = [v.first_name((*local, *frozen)) for v in variables]
    return tuple(
        dataclasses.replace(v, is_local=kind in local, is_frozen=kind in frozen)
        for v, kind in zip(variables, kinds)
    )


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
        seeded = with_generator(initializer, _SeededDraws(seed))
        if seeded is not None:
            value = seeded(shape, dtype=dtype)
        else:
            value = initial_value() if callable(initial_value) else initial_value
        return tf.ensure_shape(tf.cast(value, dtype), shape)

    return draw

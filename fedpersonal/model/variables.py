"""Specifications of a model's variables, and the names by which users choose variables."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from fedpersonal.errors import UserError
from fedpersonal.model.keras import is_elementwise, with_generator
from fedpersonal.randomness import Purpose, generator

# A message with more names than this is hard to read.
_MAX_LISTED = 40
# Lets TensorFlow choose the random algorithm.
_ANY_ALGORITHM = 3
Constraint = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """The specification of a variable, without a value.

    Attributes:
        name: Keras' name of the variable, without the output suffix, such as `item/embeddings`.
        layer: Name of its top-level layer.
        shape: Its static shape.
        dtype: Its dtype.
        is_local: Whether it stays with its client.
        initializer: Maps an int32 seed of shape (2,) to an initial value, and n seeds of shape
            (n, 2) to n values; requires a graph.
        names: The names that choose it, the most specific first: the variable's name, those of the
            nested layers around it, such as `encoder/head`, and that of its top-level layer.
        is_frozen: Whether it never changes.
        is_personal: Whether it belongs to a client's personal copies (`model.personal`), or holds
            a client's choice or weights of clusters.
        is_replaced: Whether clients send their copies in its place, so that no phase moves it.
        is_state: Whether no gradient moves it, only assignments or a special phase.
        constraint: Maps its value after a step to the constrained value, as in Keras; or None.
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
    is_state: bool = False
    constraint: Constraint | None = None

    @property
    def size(self) -> int:
        """Number of scalars."""
        return int(np.prod(self.shape, dtype=np.int64))

    def first_name(self, names: Iterable[str]) -> str | None:
        """Returns the most specific name among `names` that chooses the variable, or None."""
        chosen = set(names)
        return next((name for name in self.names if name in chosen), None)


def check_names(argument: str, names: Iterable[str], variables: Sequence[VariableSpec]) -> None:
    """Raises a UserError, which begins with `argument`, unless each name chooses a variable."""
    valid = dict.fromkeys(name for v in variables for name in reversed(v.names))
    for name in names:
        if name in valid:
            continue
        near = difflib.get_close_matches(str(name), valid, n=3)
        layers = dict.fromkeys(v.layer for v in variables)
        shown = list(valid if len(valid) <= _MAX_LISTED else layers)
        raise UserError(
            f"{argument}: {name!r} names no variable of the model"
            + (f"; did you mean {' or '.join(map(repr, near))}?" if near else ".")
            + f" It can be one of {shown}."
        )


def split_variables(
    variables: Sequence[VariableSpec], local: Sequence[str], frozen: Sequence[str]
) -> tuple[VariableSpec, ...]:
    """Marks variables as local, frozen, or neither.

    If both lists choose a variable, such as a frozen `encoder` and a local `encoder/head`, the more
    specific name counts.

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


def creation_key(kwargs: Mapping[str, Any]) -> tuple:
    """Returns the creation arguments of a variable that are equal each time it is created."""
    shape = kwargs.get("shape")
    return kwargs.get("name"), None if shape is None else tuple(shape), kwargs.get("trainable")


class Created(NamedTuple):
    """A variable that a model's builder has created.

    Attributes:
        variable: The variable.
        key: Its `creation_key`.
        start: Its initial value, or None if its initializer gives it.
    """

    variable: tf.Variable
    key: tuple
    start: np.ndarray | None


# `creation_key` to initial values, or None, of the variables with this key in order of creation.
Start = Mapping[tuple, Sequence[Union[np.ndarray, None]]]


def starts(created: Iterable[Created]) -> Start:
    """Returns the initial values of variables for when they are created again."""
    values: dict[tuple, list[np.ndarray | None]] = {}
    for one in created:
        values.setdefault(one.key, []).append(one.start)
    return values


Initializer = Callable[[tf.Tensor], tf.Tensor]


class _SeededGenerator:
    """Replaces the random generator of a Keras initializer by one with a tensor as its seed.

    For several seeds, (n, 2), samples have the shape (n, ...). TensorFlow samples with one seed at
    a time; the other operations are done for all seeds at once.
    """

    def __init__(self, seed: tf.Tensor):
        self._seed = seed

    def random_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, nonce=None):
        del nonce
        return self._sample(tf.raw_ops.StatelessRandomNormalV2, shape, dtype) * stddev + mean

    def random_uniform(self, shape, minval=0.0, maxval=None, dtype=tf.float32, nonce=None):
        del nonce
        low = tf.convert_to_tensor(minval, dtype)
        high = tf.convert_to_tensor(1 if maxval is None else maxval, dtype)
        return self._sample(tf.raw_ops.StatelessRandomUniformV2, shape, dtype) * (high - low) + low

    def truncated_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, nonce=None):
        del nonce
        return self._sample(tf.raw_ops.StatelessTruncatedNormalV2, shape, dtype) * stddev + mean

    def _sample(self, operation: Callable[..., tf.Tensor], shape: Any, dtype: Any) -> tf.Tensor:
        shape, algorithm = tf.constant(shape, tf.int32), tf.constant(_ANY_ALGORITHM)
        is_one, samples = self._seed.shape.rank == 1, []
        for seed in [self._seed] if is_one else tf.unstack(self._seed):
            key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
            samples.append(
                operation(shape=shape, key=key, counter=counter, alg=algorithm, dtype=dtype)
            )
        return samples[0] if is_one else tf.stack(samples)


def seeded_initializer(initial_value: Any, shape: tuple[int, ...], dtype: tf.DType) -> Initializer:
    """Converts the `initial_value` that Keras gives a new variable to a function of a seed.

    Args:
        initial_value: A value, a function that returns one, or a Keras initializer with its
            arguments bound.
        shape: The variable's shape.
        dtype: The variable's dtype.

    Returns:
        A function of an int32 seed of shape (2,), or (n, 2) for n values; it requires a graph.
    """
    initializer: Any = getattr(initial_value, "func", None)

    def initialize(seed: tf.Tensor) -> tf.Tensor:
        is_one = seed.shape.rank == 1
        seeded = with_generator(initializer, _SeededGenerator(seed))
        if seeded is not None:
            value = tf.cast(seeded(shape, dtype=dtype), dtype)
        else:
            value = initial_value() if callable(initial_value) else initial_value
            value = tf.cast(value, dtype)
            value = value if is_one else tf.stack([value] * seed.shape[0])
        return tf.ensure_shape(value, shape if is_one else [seed.shape[0], *shape])

    if is_elementwise(initializer) or not callable(initial_value):
        return initialize
    return each_seed(initialize)


def each_seed(initialize: Initializer) -> Initializer:
    """Converts an initializer that takes a single seed to one that takes one seed or several."""

    def initialize_each(seed: tf.Tensor) -> tf.Tensor:
        if seed.shape.rank == 1:
            return initialize(seed)
        return tf.stack([initialize(one) for one in tf.unstack(seed)])

    return initialize_each


def as_function(constraint: Constraint | None) -> Constraint | None:
    """Returns a constraint that creates tensors in place of variables.

    Keras' `RadialConstraint` creates a variable of zeros.
    """
    if constraint is None:
        return None
    function = constraint

    def as_tensor(_: Any, **kwargs: Any) -> tf.Tensor:
        value = kwargs["initial_value"]
        return tf.convert_to_tensor(value() if callable(value) else value)

    def constrain(value: tf.Tensor) -> tf.Tensor:
        with tf.variable_creator_scope(as_tensor):
            return function(value)

    return constrain


def projections(variables: Sequence[VariableSpec]) -> dict[str, Constraint]:
    """Returns the idempotent constraints, by variable name.

    They can be applied to a mean over clients. Others, such as Keras' `MinMaxNorm` with a rate
    below 1, would change values further that clients have already constrained.
    """
    constraints = {v.name: v.constraint for v in variables if v.constraint is not None}
    shapes = {v.name: v.shape for v in variables}

    def is_projection(name: str, constraint: Constraint) -> bool:
        values = generator(Purpose.TRIAL, 0).normal(scale=3.0, size=shapes[name])
        once = constraint(tf.constant(values, tf.float32))
        return np.allclose(constraint(once), once, rtol=1e-4, atol=1e-5)

    with context.eager_mode():  # The caller may be in a graph.
        return {name: each for name, each in constraints.items() if is_projection(name, each)}


def start_of(variable: VariableSpec, values: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Returns the initial value of a variable; None if it is random.

    Args:
        variable: The variable.
        values: Initial values that are fixed, by variable name.
    """
    if variable.name in values:
        return values[variable.name]
    initialize = tf.function(variable.initializer, autograph=False)
    with context.eager_mode():
        first, other = (initialize(tf.constant([seed, seed])).numpy() for seed in (0, 1))
    return first if np.array_equal(first, other) else None

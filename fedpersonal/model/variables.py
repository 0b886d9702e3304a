"""A model's variables before they have values, and the names by which they are chosen."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.model.keras import is_plain, with_generator

# A list of more names than this hides what it is to show.
_MAX_LISTED = 40
# TensorFlow's own choice of how to draw.
_ANY_ALGORITHM = 3
Constraint = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """What is known of a variable before it has a value.

    Attributes:
        name: Keras' name of the variable, without the output suffix, such as `item/embeddings`.
        layer: Name of the top-level layer that owns it.
        shape: Its static shape.
        dtype: Its dtype.
        is_local: Whether it stays with its client.
        initializer: Maps an int32 seed of shape (2,) to an initial value, in a graph; several, of
            shape (n, 2), to so many.
        names: The names that choose it, the most specific first: its own, those of the nested
            layers around it, such as `encoder/head`, and that of its top-level layer.
        is_frozen: Whether it never moves.
        is_personal: Whether it belongs to a client's personal copies (`model.personal`), or says
            which cluster a client has chosen, or how much each weighs.
        is_replaced: Whether what clients send for it comes of their copies: no phase moves it.
        is_state: Whether no gradient moves it: assignments do, or a phase of its own.
        constraint: Maps its value after a step to the one that it is to have, as in Keras; or None.
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


def creation_key(kwargs: Mapping[str, Any]) -> tuple:
    """Returns what is equal each time that a variable is created, of its creator's arguments."""
    shape = kwargs.get("shape")
    return kwargs.get("name"), None if shape is None else tuple(shape), kwargs.get("trainable")


class Created(NamedTuple):
    """A variable that a model's builder has created.

    Attributes:
        variable: The variable.
        key: Its `creation_key`.
        start: The value that it is to start from, or None for a draw.
    """

    variable: tf.Variable
    key: tuple
    start: np.ndarray | None


# The values that variables start from, or None, by their `creation_key`, as they are created.
Start = Mapping[tuple, Sequence[Union[np.ndarray, None]]]


def starts(created: Iterable[Created]) -> Start:
    """Returns what variables start from when they are created anew."""
    found: dict[tuple, list[np.ndarray | None]] = {}
    for one in created:
        found.setdefault(one.key, []).append(one.start)
    return found


Initializer = Callable[[tf.Tensor], tf.Tensor]


class _SeededDraws:
    """Stands in for the random generator inside a Keras initializer; draws from a tensor seed.

    Of several seeds, (n, 2), a draw is (n, ...). TensorFlow draws by one seed at a time; all else
    is done at once.
    """

    def __init__(self, seed: tf.Tensor):
        self._seed = seed

    def random_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, nonce=None):
        del nonce
        return self._draw(tf.raw_ops.StatelessRandomNormalV2, shape, dtype) * stddev + mean

    def random_uniform(self, shape, minval=0.0, maxval=None, dtype=tf.float32, nonce=None):
        del nonce
        low = tf.convert_to_tensor(minval, dtype)
        high = tf.convert_to_tensor(1 if maxval is None else maxval, dtype)
        return self._draw(tf.raw_ops.StatelessRandomUniformV2, shape, dtype) * (high - low) + low

    def truncated_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, nonce=None):
        del nonce
        return self._draw(tf.raw_ops.StatelessTruncatedNormalV2, shape, dtype) * stddev + mean

    def _draw(self, operation: Callable[..., tf.Tensor], shape: Any, dtype: Any) -> tf.Tensor:
        shape, algorithm = tf.constant(shape, tf.int32), tf.constant(_ANY_ALGORITHM)
        is_one, drawn = self._seed.shape.rank == 1, []
        for seed in [self._seed] if is_one else tf.unstack(self._seed):
            key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
            drawn.append(
                operation(shape=shape, key=key, counter=counter, alg=algorithm, dtype=dtype)
            )
        return drawn[0] if is_one else tf.stack(drawn)


def seeded_initializer(initial_value: Any, shape: tuple[int, ...], dtype: tf.DType) -> Initializer:
    """Turns what Keras gives a new variable as its value into a function of a seed.

    It gives a value, a function that returns one, or a Keras initializer with its arguments bound.
    The function's seed is int32 of shape (2,), or (n, 2) for n values; it needs a graph.
    """
    initializer: Any = getattr(initial_value, "func", None)

    def draw(seed: tf.Tensor) -> tf.Tensor:
        is_one = seed.shape.rank == 1
        seeded = with_generator(initializer, _SeededDraws(seed))
        if seeded is not None:
            value = tf.cast(seeded(shape, dtype=dtype), dtype)
        else:
            value = initial_value() if callable(initial_value) else initial_value
            value = tf.cast(value, dtype)
            value = value if is_one else tf.stack([value] * seed.shape[0])
        return tf.ensure_shape(value, shape if is_one else [seed.shape[0], *shape])

    return draw if is_plain(initializer) or not callable(initial_value) else each_seed(draw)


def each_seed(draw: Initializer) -> Initializer:
    """Returns an initializer for one seed or several, by one that takes a single seed."""

    def drawn(seed: tf.Tensor) -> tf.Tensor:
        if seed.shape.rank == 1:
            return draw(seed)
        return tf.stack([draw(own) for own in tf.unstack(seed)])

    return drawn


def as_function(constraint: Constraint | None) -> Constraint | None:
    """Returns a constraint that makes no variables, as Keras' `RadialConstraint` does of zeros."""
    if constraint is None:
        return None
    given = constraint

    def as_tensor(_: Any, **made: Any) -> tf.Tensor:
        value = made["initial_value"]
        return tf.convert_to_tensor(value() if callable(value) else value)

    def constrain(value: tf.Tensor) -> tf.Tensor:
        with tf.variable_creator_scope(as_tensor):
            return given(value)

    return constrain


def projections(variables: Sequence[VariableSpec]) -> dict[str, Constraint]:
    """Returns the constraints that leave alone what they have once returned, by variable's name.

    A mean over clients can be brought back by these. Others, such as Keras' `MinMaxNorm` with a
    rate below 1, would move further what clients have already constrained.
    """
    constraints = {v.name: v.constraint for v in variables if v.constraint is not None}
    shapes = {v.name: v.shape for v in variables}

    def is_projection(name: str, constraint: Constraint) -> bool:
        drawn = generator(Purpose.TRIAL, 0).normal(scale=3.0, size=shapes[name])
        once = constraint(tf.constant(drawn, tf.float32))
        return np.allclose(constraint(once), once, rtol=1e-4, atol=1e-5)

    with context.eager_mode():  # Whoever asks may be in a graph.
        return {name: each for name, each in constraints.items() if is_projection(name, each)}


def start_of(variable: VariableSpec, known: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Returns the value that a variable starts from; None if it is drawn.

    `known` are values by name.
    """
    if variable.name in known:
        return known[variable.name]
    draw = tf.function(variable.initializer, autograph=False)
    with context.eager_mode():
        first, other = (draw(tf.constant([seed, seed])).numpy() for seed in (0, 1))
    return first if np.array_equal(first, other) else None

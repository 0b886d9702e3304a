"""A model's variables before they have values, and the names by which they are chosen."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError

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

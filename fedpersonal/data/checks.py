"""Checks of options that the modules of this package share."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpersonal.errors import UserError


def check_count(name: str, value: int, *, minimum: int = 0) -> int:
    """Returns `value` as a plain int, once it is known to be a whole number >= `minimum`.

    Args:
        name: The option's name, for the message.
        value: What the caller gave: an int or a NumPy integer.
        minimum: The least that is right.

    Raises:
        UserError: If `value` is no whole number or is less than `minimum`.
    """
    try:
        # A bool is an int to Python, though never to the person who wrote it.
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < minimum:
        raise UserError(f"{name} must be a whole number >= {minimum}, got {value!r}")
    return number


def check_fractions(fractions: tuple[float, float, float]) -> tuple[float, float, float]:
    """Returns the train, validation and test `fractions` as floats, once known to sum to 1.

    Raises:
        UserError: Unless there are three, each in [0, 1], that sum to 1.
    """
    try:
        train, validation, test = (float(fraction) for fraction in fractions)
    except (TypeError, ValueError):
        train = validation = test = -1.0
    in_range = all(0.0 <= fraction <= 1.0 for fraction in (train, validation, test))
    if not in_range or abs(train + validation + test - 1.0) > 1e-6:
        raise UserError(
            "fractions must be three numbers (train, validation, test) in [0, 1] that sum to 1,"
            f" got {fractions!r}"
        )
    return train, validation, test


def set_columns(instance: Any, dtypes: Mapping[str, Any]) -> None:
    """Makes fields of a frozen dataclass arrays of one dimension.

    Args:
        instance: The dataclass' instance.
        dtypes: Field to its dtype.

    Raises:
        UserError: If a field has another number of dimensions.
    """
    for field, dtype in dtypes.items():
        array = np.asarray(getattr(instance, field), dtype)
        if array.ndim != 1:
            raise UserError(f"{field} must have one dimension, got the shape {array.shape}")
        object.__setattr__(instance, field, array)


def check_named(instance: Any, numbers: str, names: str) -> None:
    """Raises `UserError` unless names are distinct and numbers are places among them.

    Args:
        instance: What has both as arrays.
        numbers: The attribute of the numbers.
        names: The attribute of the names.
    """
    all_names, places = getattr(instance, names).tolist(), getattr(instance, numbers)
    if len(set(all_names)) < len(all_names):
        twice = next(name for i, name in enumerate(all_names) if name in all_names[:i])
        raise UserError(f"{names} must be distinct, but {twice!r} is there twice")
    wrong = (places < 0) | (places >= len(all_names))
    if wrong.any():
        raise UserError(
            f"{numbers} must be in [0, {len(all_names)}), as there are so many {names}, got"
            f" {places[wrong][0]}"
        )

"""Checks of options that the modules of this package share."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator

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


def check_counts(minimum: int, **counts: int) -> None:
    """Checks several options, by name, as `check_count` does."""
    for name, value in counts.items():
        check_count(name, value, minimum=minimum)


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


@contextlib.contextmanager
def errors_of(what: str) -> Iterator[None]:
    """Puts `what`, such as a file's name, before the message of each `UserError`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from None

"""Checks of options that the modules of this package share."""

from __future__ import annotations

import collections
import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence

from fedpersonal.errors import UserError, quoted


def check_count(name: str, value: int, *, minimum: int = 0) -> int:
    """Returns `value` as a plain int, once it is known to be a whole number >= `minimum`.

    Raises:
        UserError: If it is not; the message has the option's `name`.
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


def check_distinct(name: str, values: Sequence[str]) -> None:
    """Raises a `UserError` if a value is there more than once."""
    counts = collections.Counter(values)
    if len(counts) < len(values):
        value, times = counts.most_common(1)[0]
        raise UserError(f"{name} must be distinct, but {quoted(value)} is there {times} times")


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can write a text, which it cannot with what stands for undecodable bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def has_nul(text: str) -> bool:
    """Whether a text has a NUL character, where some programs take it to end."""
    return "\0" in text


def check_names(name: str, values: Iterable[str]) -> None:
    """Raises a `UserError` if one of the `values` is a text that pandas takes for others, too.

    To its categories, names are the same that differ after a NUL character only, or are not
    Unicode: two people would become one.
    """
    values = list(values)
    together = "".join(values)
    if has_nul(together) or not is_unicode(together):
        wrong = next(value for value in values if has_nul(value) or not is_unicode(value))
        why = "has a NUL character" if has_nul(wrong) else "is not Unicode text"
        raise UserError(f"{name}: {quoted(wrong)} {why}")


def check_fractions(fractions: tuple[float, float, float]) -> tuple[float, float, float]:
    """Returns the train, validation and test `fractions` as floats, once known to sum to 1.

    Raises:
        UserError: Unless there are three, each in [0, 1], that sum to 1.
    """
    try:
        train, validation, test = (float(fraction) for fraction in fractions)
    except (TypeError, ValueError):
        train = validation = test = -1.0
    if min(train, validation, test) >= 0.0 and abs(train + validation + test - 1.0) <= 1e-6:
        return train, validation, test
    raise UserError(
        "fractions must be three numbers (train, validation, test) in [0, 1] that sum to 1,"
        f" got {fractions!r}"
    )


@contextlib.contextmanager
def errors_of(what: str) -> Iterator[None]:
    """Puts `what`, such as a file's name, before the message of each `UserError`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from None

"""Errors that report users' mistakes, checks that raise them, and words of messages."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

_MAX_LENGTH = 60
_MAX_LINE_LENGTH = 200
_MAX_NAMES = 20


class UserError(ValueError):
    """A mistake of the caller that one line explains; binaries print it and exit with status 2."""


class TrainingError(UserError):
    """Training has diverged, or nothing was learned."""


def check_choice(context: str, option: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises a ValueError that names context and option unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{context}: {option} must be one of {list(choices)}, not {value!r}.")


_Fn = TypeVar("_Fn", bound=Callable[..., Any])


def named_arguments(fn: _Fn) -> _Fn:
    """Makes a function suggest the nearest name when it gets an unknown keyword argument."""
    names = list(inspect.signature(fn).parameters)

    @functools.wraps(fn)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in names:
                function = fn.__qualname__.replace(".__init__", "")
                raise TypeError(f"{function} has no argument {name!r}{did_you_mean(name, names)}")
        return fn(*args, **kwargs)

    return checked  # type: ignore[return-value]


def type_name(value: object) -> str:
    """Returns the name by which a message calls the type of a wrong value."""
    name = getattr(value, "__qualname__", None)
    if name:
        return f"{'the class' if isinstance(value, type) else 'the function'} {name}"
    return type(value).__name__.lstrip("_")


def printable(text: str) -> str:
    """Returns a text with its control characters escaped, because a terminal would obey them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(word: str, choices: Iterable[str], mark: str = "") -> str:
    """Returns the end of a message that suggests the nearest choice; "." if none is near.

    Args:
        word: The unknown word.
        choices: The words that exist.
        mark: The prefix of a choice in the message, such as "--".
    """
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {mark}{near[0]}?" if near else "."


def with_count(count: int, phrase: str) -> str:
    """Returns a count and a phrase that begins with a plural: "1 line left out", "2 lines ..."."""
    noun, _, rest = phrase.partition(" ")
    noun = noun[:-1] if count == 1 and noun.endswith("s") else noun
    return f"{count:,} {noun} {rest}".rstrip()


def plural(noun: str) -> str:
    """Returns the plural of a noun, by the usual rules of English."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{noun}s"


def noun_with_count(count: int, noun: str) -> str:
    """Returns a count with its noun, such as "1 user" or "1,200 users"."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def one_line(value: object) -> str:
    """Returns the text of an error or a foreign value as one line of at most 200 characters."""
    text = " ".join(str(value).split()) or type(value).__name__
    return printable(text[:_MAX_LINE_LENGTH]) + "..." * (len(text) > _MAX_LINE_LENGTH)


def quoted(text: str) -> str:
    """Returns the start of a foreign text in quotation marks, as a message quotes it."""
    return repr(text[:_MAX_LENGTH]) + "..." * (len(text) > _MAX_LENGTH)


def join_words(names: Sequence[str]) -> str:
    """Returns foreign names as a message lists them: the first ones, then the count of the rest."""
    shown = ", ".join(
        printable(n[:_MAX_LENGTH]) + "..." * (len(n) > _MAX_LENGTH) for n in names[:_MAX_NAMES]
    )
    return shown + (f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else "")

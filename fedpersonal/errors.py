"""Users' mistakes, and checks that find them."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

_LONGEST = 60
_LONGEST_LINE = 200
_MOST_NAMES = 20


class UserError(ValueError):
    """A mistake of the caller that one line explains; binaries print it and exit with status 2."""


class TrainingError(UserError):
    """Training has diverged, or nothing was learned."""


def check_choice(owner: str, option: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises a ValueError that names the option unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{owner}: {option} must be one of {list(choices)}, not {value!r}.")


_Fn = TypeVar("_Fn", bound=Callable[..., Any])


def named_arguments(fn: _Fn) -> _Fn:
    """Has a function ask, of a keyword argument that it does not have, which one was meant."""
    names = list(inspect.signature(fn).parameters)

    @functools.wraps(fn)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in names:
                what = fn.__qualname__.replace(".__init__", "")
                raise TypeError(f"{what} has no argument {name!r}{did_you_mean(name, names)}")
        return fn(*args, **kwargs)

    return checked  # type: ignore[return-value]


def kind_of(value: object) -> str:
    """Returns what a message calls a value of the wrong type."""
    name = getattr(value, "__qualname__", None)
    if name:
        return f"{'the class' if isinstance(value, type) else 'the function'} {name}"
    return type(value).__name__.lstrip("_")


def escaped(text: str) -> str:
    """Returns a text whose control characters are escaped: a terminal would obey them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(word: str, choices: Iterable[str], mark: str = "") -> str:
    """Returns how a message asks for the choice that is nearest to a word, or "." if none is near.

    Args:
        word: What was given.
        choices: What there is.
        mark: What stands before a choice, such as "--".
    """
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {mark}{near[0]}?" if near else "."


def counted(count: int, what: str) -> str:
    """Returns so many of what begins with a plural, such as "lines left out", in words."""
    things, _, others = what.partition(" ")
    things = things[:-1] if count == 1 and things.endswith("s") else things
    return f"{count:,} {things} {others}".rstrip()


def plural(noun: str) -> str:
    """Returns the plural of a noun, by the usual rules of English."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{noun}s"


def counted_nouns(count: int, noun: str) -> str:
    """Returns a count with its noun, such as "1 user" or "1,200 users"."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def one_line(said: object) -> str:
    """Returns what an error, or somebody else's value, says: one line of moderate length."""
    text = " ".join(str(said).split()) or type(said).__name__
    return escaped(text[:_LONGEST_LINE]) + "..." * (len(text) > _LONGEST_LINE)


def quoted(text: str) -> str:
    """Returns somebody else's text as a message quotes it: its start, in quotation marks."""
    return repr(text[:_LONGEST]) + "..." * (len(text) > _LONGEST)


def listed(names: Sequence[str]) -> str:
    """Returns somebody else's names as a message lists them: the first ones, and how many more."""
    shown = ", ".join(
        escaped(n[:_LONGEST]) + "..." * (len(n) > _LONGEST) for n in names[:_MOST_NAMES]
    )
    return shown + (f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else "")

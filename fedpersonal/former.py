"""Names of the previous version, which still work in this version, with a warning.

`OPTIONS` has flags, options of run folders and arguments of methods; `PUBLIC` has the names of
`fedpersonal`. Functions rename their arguments by `renamed_arguments`, classes their attributes by
`FormerAttribute`, and base classes the members of subclasses by `rename_members`. The next version
deletes this file.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

# Former name to present name.
OPTIONS = {
    "at_once": "jobs",
    "beside": "runners_up",
    "dynamic": "feddyn_alpha",
    "start": "local_start",
}
PUBLIC: dict[str, str] = {
    "EvaluationSet": "suite.EvaluationSet",
    "Run": "RunState",
    "Task": "suite.Task",
    "TestReport": "EvaluationReport",
}
# Modules of tasks, which run folders name.
_TASKS = {
    f"fedpersonal.tasks.{old}.task": f"fedpersonal.suite.tasks.{new}.task"
    for old, new in (
        ("digits", "digits"),
        ("documents", "labels"),
        ("interactions", "ranking"),
        ("next_word", "next_word"),
        ("ratings", "ratings"),
        ("utterances", "utterances"),
    )
}

_Fn = TypeVar("_Fn", bound=Callable[..., Any])


def warn(kind: str, old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warns about the use of a former name.

    Args:
        kind: The kind of name, such as `argument`.
        old: The former name.
        new: The present name.
        stacklevel: The number of frames from this function up to the user's code.
    """
    text = f"{kind} {old!r} is now called {new!r}; the next version no longer knows {old!r}"
    warnings.warn(text, FutureWarning, stacklevel=stacklevel + 1)


def renamed_arguments(**former: str) -> Callable[[_Fn], _Fn]:
    """Returns a decorator that accepts former names of keyword arguments.

    Args:
        **former: Former name to present name.

    Examples:
        >>> @renamed_arguments(colour="color")
        ... def paint(color):
        ...     return color
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     paint(colour="red")
        'red'
    """

    def decorate(function: _Fn) -> _Fn:
        @functools.wraps(function)
        def renamed(*args: Any, **kwargs: Any) -> Any:
            for old in former.keys() & kwargs.keys():
                warn("argument", old, former[old])
                kwargs.setdefault(former[old], kwargs.pop(old))
            return function(*args, **kwargs)

        return renamed  # type: ignore[return-value]

    return decorate


class FormerAttribute:
    """A former name of an attribute: `colour = FormerAttribute("color")` in a class."""

    def __init__(self, new: str):
        self._new, self._old = new, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, instance: Any, owner: type) -> Any:
        warn("attribute", self._old, self._new)
        return getattr(owner if instance is None else instance, self._new)


def rename_members(cls: type, names: Mapping[str, str]) -> None:
    """Gives members that a class defines by former names their present names, with a warning.

    Args:
        cls: The class.
        names: Former name to present name.
    """
    for old in names.keys() & vars(cls).keys():
        warn(f"{cls.__name__}'s member", old, names[old], stacklevel=3)
        setattr(cls, names[old], vars(cls)[old])


def present_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a run folder under their present names, without a warning.

    Only a run of the previous version's tasks has former names: a user's program or task may have
    an option of such a name.

    Args:
        values: Options by name, and the module of the task, if any, as `task`.
    """
    task = _TASKS.get(str(values.get("task")))
    if task is None:
        return dict(values)
    renamed = {OPTIONS.get(name, name): value for name, value in values.items()}
    return {**renamed, "task": task}


def present_arguments(values: Mapping[str, Any], present: Collection[str]) -> dict[str, Any]:
    """Returns keyword arguments under the options' present names; warns about former names.

    Args:
        values: Arguments by name.
        present: The names that the function takes.
    """
    renamed = {}
    for name, value in values.items():
        new = OPTIONS.get(name, name)
        if name not in present and new in present:
            warn("argument", name, new, stacklevel=3)
            name = new
        renamed[name] = value
    return renamed


def present_flag(argument: str, present: Collection[str]) -> tuple[str, str]:
    """Returns a command-line argument with the flag's present name, and the warning, if any.

    Args:
        argument: An argument, such as `--start=kept`.
        present: The names of the program's flags.
    """
    flag = re.match(r"--?(\w+)", argument)
    name = flag[1] if flag else ""
    new = OPTIONS.get(name)
    if new is None or name in present or new not in present:
        return argument, ""
    warning = f"--{name} is now called --{new}; the next version no longer knows --{name}"
    return argument.replace(name, new, 1), warning

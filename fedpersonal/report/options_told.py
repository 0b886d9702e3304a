"""The options of a run that are not the usual ones, and the command that repeats it."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

from fedpersonal.report.numbers import shown
from fedpersonal.report.run_data import OUR_TASKS, RunData

# Pages are shared: where one's files and machines are is nobody's business.
_PATHS, _ADDRESSES = ("_dir", "_file", "_path"), ("_address",)


def options_told(run: RunData) -> list[tuple[str, str, str]]:
    """Returns the name, the value and the default of each option that differs from its default.

    Of a program of one's own, which has no defaults, all options, with empty defaults.
    """
    defaults = _defaults(run)
    if defaults is None:
        return [(n, option_text(n, v), "") for n, v in run.options.items() if n != "task"]
    return [
        (name, option_text(name, value), option_text(name, defaults[name]))
        for name, value in run.options.items()
        if name in defaults and _plain(value) != _plain(defaults[name])
    ]


def command(run: RunData) -> str | None:
    """Returns the command that repeats a run of a binary; None for other programs."""
    if run.task is None or not str(run.options["task"]).startswith(OUR_TASKS):
        return None
    parts = [f"fedpersonal {run.task.name}"]
    for name, declared in run.task.options.declarations().items():
        value = run.options.get(name)
        if _plain(value) != _plain(declared.default):
            parts += map(shlex.quote, declared.flags(_told(name, value)))
    return " \\\n  ".join(parts)


def _told(name: str, value: Any) -> Any:
    """Returns a value with its texts as a page shows them."""
    if isinstance(value, (list, tuple)):
        return tuple(option_text(name, one) for one in value)
    return value if value is None or isinstance(value, bool) else option_text(name, value)


def _defaults(run: RunData) -> Mapping[str, Any] | None:
    if run.task is None:
        return None
    return {name: d.default for name, d in run.task.options.declarations().items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def option_text(name: str, value: Any) -> str:
    """Returns the value of an option as a page shows it: short, and without folders."""
    if isinstance(value, (list, tuple)):
        return ",".join(option_text(name, one) for one in value)
    if isinstance(value, str) and name.endswith(_ADDRESSES):
        return "host:port"
    if isinstance(value, str):
        is_path = name.endswith(_PATHS) or pathlib.PurePath(value).is_absolute()
        return shown(f"path/to/{pathlib.PurePath(value).name}" if is_path else value)
    return shown(value)

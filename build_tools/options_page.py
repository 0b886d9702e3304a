"""Writes docs/reference/options.md, the page of all options, from the declarations of options.

python -m build_tools.options_page
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator, Mapping

from fedpersonal.files import atomic_write
from fedpersonal.options import Declaration
from fedpersonal.suite.commands.subcommands import DATA_COMMANDS
from fedpersonal.suite.tasks.find import all_tasks
from fedpersonal.suite.tasks.task import Task

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "reference" / "options.md"
_USUAL = " and at most 1,000,000,000"
_TITLE = """# Options

Made by `python -m build_tools.options_page`; change the options, not this page. A value in square
brackets is a default that depends on other options; no number is above a billion.

An option that has no effect with the chosen method, task or other options is an error if it is
typed, or set by your file of flags. It is no error in a preset, which is made for several methods.
One exception: a method and its variant with fine-tuning, such as `fed_avg` and
`fed_avg_finetuning`, are compared by runs with the same flags. So `--finetuning_...` gives only a
warning with the method without fine-tuning, and if fine-tuning changes no variable that predictions
use.
"""


def page() -> str:
    """Returns the page: a table of options and one of methods for each task."""
    return "\n".join([_TITLE, *(line for task in all_tasks().values() for line in _lines(task))])


def _lines(task: Task) -> Iterator[str]:
    commands = [name for name, table in DATA_COMMANDS.items() if table.task == task.name]
    names = " and ".join(f"`fedpersonal {name}`" for name in [*commands, task.name])
    yield f"## {task.name}\n"
    yield f"Options of {names}.\n"
    yield from options_table(task.options.declarations())
    yield "\n| `--method` | name | from |\n| --- | --- | --- |"
    for name, method in task.methods.items():
        # The docstring of a method's file begins with its authors.
        module = sys.modules[method.__module__]
        yield f"| `{name}` | {method.title} | {(module.__doc__ or '').splitlines()[0]} |"
    yield ""


def options_table(declarations: Mapping[str, Declaration]) -> Iterator[str]:
    """Yields the lines of a table of options."""
    yield "| flag | default | range | meaning |\n| --- | --- | --- | --- |"
    for _, option in sorted(declarations.items()):
        cells = (f"`--{option.name}`", _default(option), _range(option), option.rule.help)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(option: Declaration) -> str:
    default = option.default
    values = default if isinstance(default, tuple) else (default,)
    return "" if values in ((), (None,)) else f"`{','.join(map(str, values))}`"


def _range(option: Declaration) -> str:
    if option.rule.choices:
        return ", ".join(f"`{choice}`" for choice in option.rule.choices)
    words = option.rule.range(option.kind).replace(_USUAL, "")
    words = words or {bool: "true or false", str: "text"}.get(option.kind, "")
    return f"{words}, several" if option.is_list else words


if __name__ == "__main__":
    with atomic_write(PAGE) as file:
        file.write(page())

"""The flags `--help`, which prints a program's main flags, and `--helpfull`, all in groups.

The declarations of options define which of them are main ones, and their groups.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from absl import flags

from fedpersonal.options import Declaration
from fedpersonal.suite.commands.subcommands import DATA_COMMANDS, DataCommand

_MOST_COLUMNS = 100
_INDENT = 24
# A flag for presets, which name their runs; users pass --output_dir.
_HIDDEN = "experiment_name"
_FLAGFILE = f"{'  --flagfile':{_INDENT}}A file of flags, such as those in experiments/presets."
# Flags that select public data.
_PUBLIC_DATA = ("dataset", "data_dir")
_PROGRAM, _ALL_PROGRAMS = "This program", "Every program"


def define_flags(options: Mapping[str, Declaration], subcommand: str = "", usage: str = "") -> None:
    """Defines `--help` and `--helpfull`, which print a help page and exit.

    Args:
        options: The options of the program's flags, by name, for flags that are options. It is read
            when a help page is printed.
        subcommand: The subcommand that runs a task; empty for other programs.
        usage: The text about a task, with example commands; other programs have a docstring.
    """
    table = DATA_COMMANDS.get(subcommand)
    usage = _table_usage(subcommand, table) if table else usage
    shown: dict[str, Any] = {"options": options, "table": table, "usage": usage}
    flags.DEFINE_flag(_Help("help", "The main flags.", **shown, short_name="?"))
    flags.DEFINE_flag(_Help("helpfull", "All flags, in groups.", **shown))


class _Help(flags.BooleanFlag):
    def __init__(
        self,
        name: str,
        help: str,
        *,
        options: Mapping[str, Declaration],
        table: DataCommand | None,
        usage: str,
        **kwargs: str,
    ):
        super().__init__(name, False, help, **kwargs)
        self._options, self._table, self._usage = options, table, usage

    def parse(self, argument: str | bool) -> None:
        if self._parse(argument):
            usage = self._usage or sys.modules["__main__"].__doc__ or ""
            is_full = self.name == "helpfull"
            page = _full(self._options) if is_full else _short(self._options, self._table)
            print("\n".join([usage.strip(), *page]), flush=True)
            sys.exit(0)


def _table_usage(subcommand: str, table: DataCommand) -> str:
    """Returns the text about a command for the user's table."""
    command = f"fedpersonal {subcommand} --{table.file_flag}=table.csv --size=quick"
    return f"""{table.does.capitalize()}, from your own table with these columns, and time if known:
{table.columns}.

{command}
{command} --user_column=person"""


def _groups(options: Mapping[str, Declaration]) -> dict[str, list[flags.Flag]]:
    """Returns the program's flags by their group; groups of its task come first."""
    groups: dict[str, list[flags.Flag]] = {_PROGRAM: []}
    for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0]):
        group = options[flag.name].help_section if flag.name in options else _PROGRAM
        groups.setdefault(group, []).append(flag)
    return dict(reversed(groups.items()))


def _short(options: Mapping[str, Declaration], table: DataCommand | None) -> Iterable[str]:
    members = {flag.name: flag for group in _groups(options).values() for flag in group}
    shown = [n for n in members if (options[n].rule.in_help if n in options else n != _HIDDEN)]
    if table:
        user, time = "user_column", "time_column"
        columns = [n for n in members if n.endswith("_column") and n not in (user, time)]
        format = ["separator", "header", "quoting", "encoding"]
        first = [table.file_flag, user, *columns, time, *format, "num_users", "users_file", "size"]
        shown = [*first, *(n for n in shown if n not in (*first, *_PUBLIC_DATA))]
    yield ""
    for name in shown:
        yield from _lines(members[name])
    yield f"{_FLAGFILE}\n\n--helpfull lists all {len(members)} flags, in groups."


def _full(options: Mapping[str, Declaration]) -> Iterable[str]:
    groups = _groups(options)
    listed = {flag.name for group in groups.values() for flag in group}
    # FLAGS has a flag with a short name twice.
    others = sorted({flags.FLAGS[name].name for name in flags.FLAGS} - listed)
    groups[_ALL_PROGRAMS] = [flags.FLAGS[name] for name in others]
    for group, members in groups.items():
        if members:
            yield f"\n{group.rstrip('.')}:"
        for flag in members:
            yield from _lines(flag)
    yield _FLAGFILE


def _lines(flag: flags.Flag) -> list[str]:
    """Returns the flag's name with its description next to it."""
    columns = min(_MOST_COLUMNS, shutil.get_terminal_size((_MOST_COLUMNS, 24)).columns)
    name = f"  --{'[no]' if flag.boolean else ''}{flag.name}"
    choices = getattr(flag.parser, "enum_values", None) or []
    # absl's list of choices has no spaces at which it could be wrapped.
    parts = [" ".join((flag.help or "").removeprefix(f"<{'|'.join(choices)}>: ").split())]
    if choices:
        parts.append(f"One of {', '.join(choices)}.")
    if flag.default not in (None, "", []):
        parts.append(f"[default: {_as_text(flag.default)}]")
    lines = textwrap.wrap(" ".join(parts), max(20, columns - _INDENT), break_on_hyphens=False)
    if len(name) < _INDENT - 1:
        name = name.ljust(_INDENT) + (lines.pop(0) if lines else "")
    return [name, *(" " * _INDENT + line for line in lines)]


def _as_text(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(map(str, default)) if isinstance(default, list) else str(default)

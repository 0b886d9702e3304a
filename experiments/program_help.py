"""What `--help` and `--helpfull` say of a program: the flags that matter, or all of them in groups.

Which options matter, and to which group each belongs, their declarations say.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from absl import flags

from experiments.command import CALLED, OWN_DATA, OwnData
from fedpersonal.options import Declaration

_MOST_COLUMNS = 100
_INDENT = 24
# Presets name their runs; people give --output_dir.
_UNSHOWN = "experiment_name"
_FLAGFILE = f"{'  --flagfile':{_INDENT}}A file of flags, such as those in experiments/presets."
# What names data of others.
_OTHER_DATA = ("dataset", "data_dir")
_OWN, _OTHERS = "This program", "Every program"


def define_flags(options: Mapping[str, Declaration]) -> None:
    """Defines `--help` and `--helpfull`, which print what they are asked for and exit.

    Args:
        options: What the program's flags stand for, by name, where that is an option. It is read
            when help is asked for.
    """
    flags.DEFINE_flag(_Help("help", "The flags that matter.", options, short_name="?"))
    flags.DEFINE_flag(_Help("helpfull", "All flags, in groups.", options))


class _Help(flags.BooleanFlag):
    def __init__(self, name: str, help: str, options: Mapping[str, Declaration], **kwargs: str):
        super().__init__(name, False, help, **kwargs)
        self._options = options

    def parse(self, argument: str | bool) -> None:
        if self._parse(argument):
            page = _full if self.name == "helpfull" else _short
            print("\n".join([_about(), *page(self._options)]), flush=True)
            sys.exit(0)


def _own_data() -> OwnData | None:
    """Returns what the program was called for, where that is one's own table."""
    return OWN_DATA.get(vars(sys.modules["__main__"]).get(CALLED, ""))


def _about() -> str:
    """Returns what the program says of itself."""
    called, own = vars(sys.modules["__main__"]).get(CALLED), _own_data()
    if own is None:
        return (sys.modules["__main__"].__doc__ or "").strip()
    command = f"fedpersonal {called} --{own.file_flag}=table.csv --size=quick"
    return f"""{own.does.capitalize()}, from your own table with these columns, and time if known:
{own.columns}.

{command}
{command} --user_column=person"""


def _groups(options: Mapping[str, Declaration]) -> dict[str, list[flags.Flag]]:
    """Returns the program's flags by their group, those of its task first."""
    groups: dict[str, list[flags.Flag]] = {_OWN: []}
    for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0]):
        group = options[flag.name].group if flag.name in options else _OWN
        groups.setdefault(group, []).append(flag)
    return dict(reversed(groups.items()))


def _short(options: Mapping[str, Declaration]) -> Iterable[str]:
    own = {flag.name: flag for group in _groups(options).values() for flag in group}
    shown = [n for n in own if (options[n].rule.in_help if n in options else n != _UNSHOWN)]
    if table := _own_data():
        user, time = "user_column", "time_column"
        columns = [n for n in own if n.endswith("_column") and n not in (user, time)]
        format = ["separator", "header", "quoting", "encoding"]
        first = [table.file_flag, user, *columns, time, *format, "num_users", "users_file", "size"]
        shown = [*first, *(n for n in shown if n not in (*first, *_OTHER_DATA))]
    yield ""
    for name in shown:
        yield from _lines(own[name])
    yield f"{_FLAGFILE}\n\n--helpfull lists all {len(own)} flags, in groups."


def _full(options: Mapping[str, Declaration]) -> Iterable[str]:
    groups = _groups(options)
    own = {flag.name for group in groups.values() for flag in group}
    # A flag with a short name is there twice.
    others = sorted({flags.FLAGS[name].name for name in flags.FLAGS} - own)
    groups[_OTHERS] = [flags.FLAGS[name] for name in others]
    for group, members in groups.items():
        if members:
            yield f"\n{group.rstrip('.')}:"
        for flag in members:
            yield from _lines(flag)
    yield _FLAGFILE


def _lines(flag: flags.Flag) -> list[str]:
    """Returns the flag's name, and beside it what it means."""
    columns = min(_MOST_COLUMNS, shutil.get_terminal_size((_MOST_COLUMNS, 24)).columns)
    name = f"  --{'[no]' if flag.boolean else ''}{flag.name}"
    choices = getattr(flag.parser, "enum_values", None) or []
    # absl's list of choices cannot be broken into lines.
    told = [" ".join((flag.help or "").removeprefix(f"<{'|'.join(choices)}>: ").split())]
    if choices:
        told.append(f"One of {', '.join(choices)}.")
    if flag.default not in (None, "", []):
        told.append(f"[default: {_shown(flag.default)}]")
    beside = textwrap.wrap(" ".join(told), max(20, columns - _INDENT), break_on_hyphens=False)
    if len(name) < _INDENT - 1:
        name = name.ljust(_INDENT) + (beside.pop(0) if beside else "")
    return [name, *(" " * _INDENT + line for line in beside)]


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(map(str, default)) if isinstance(default, list) else str(default)

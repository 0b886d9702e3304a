"""The absl flags of options; the declaration of an option defines its flag."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import sys
from collections.abc import Sequence

from absl import flags

from fedpersonal import former
from fedpersonal.errors import UserError, did_you_mean
from fedpersonal.options import Declaration, Options, Value
from fedpersonal.suite import PRESETS, ROOT
from fedpersonal.suite.commands.subcommands import DATA_COMMANDS

# Flags belong to the program that calls `define`, not to this module.
flags.disclaim_key_flags()

# The options of this program's flags, by name.
defined: dict[str, Declaration] = {}
# The source of flags not set on the command line, by name: a file of flags, or a size.
set_by: dict[str, str] = {}
# The flags that a preset has set, by `--size` or as a file.
preset: set[str] = set()
# The sizes of presets and their purposes.
SIZES = {
    "quick": "a first look",
    "paper": "the paper's settings",
    "best": "the best settings of a search on MovieLens-1M",
}
# Flags that a size does not set: the data, and the name of the run.
_NOT_SIZED = ("dataset", "experiment_name")


def define(options: type[Options]) -> None:
    """Defines a flag for each option of a class."""
    for declaration in options.declarations().values():
        _define(declaration)


def parse(options: type[Options]) -> Options:
    """Returns the options that the flags describe.

    Raises:
        UserError: If a value is out of range, or two contradict each other.
    """
    return options(**{name: flags.FLAGS[name].value for name in options.declarations()})


def define_shared(
    *classes: type[Options], without: Sequence[str] = ()
) -> dict[str, set[type[Options]]]:
    """Defines one flag for each option of several classes; its default is None.

    Args:
        *classes: The classes. If their choices for an option differ, the flag takes all of them.
        without: Options that get no flags.

    Returns:
        The classes that have an option, by its name.
    """
    by_option: dict[str, list[tuple[type[Options], Declaration]]] = {}
    for cls in classes:
        for name, declaration in cls.declarations().items():
            if name not in without:
                by_option.setdefault(name, []).append((cls, declaration))
    for pairs in by_option.values():
        rule = pairs[0][1].rule
        choices = tuple(dict.fromkeys(c for _, d in pairs for c in d.rule.choices))
        texts = dict.fromkeys(d.rule.help for _, d in pairs)
        # Only the help of each class's program shows its main options.
        rule = dataclasses.replace(rule, help=" / ".join(texts), choices=choices, in_help=False)
        _define(dataclasses.replace(pairs[0][1], default=None, rule=rule))
    return {name: {cls for cls, _ in pairs} for name, pairs in by_option.items()}


def parse_shared(
    shared: dict[str, set[type[Options]]], options: type[Options], program: str
) -> dict[str, Value]:
    """Returns the options that the user has set by shared flags.

    Args:
        shared: The result of `define_shared`.
        options: The class of the options.
        program: The name of the class for the user, such as `--task=movielens`.

    Raises:
        UserError: If the user has set a flag that is no option of the class.
    """
    values = {name: flags.FLAGS[name].value for name in shared if flags.FLAGS[name].present}
    for name in values:
        if options not in shared[name]:
            raise UserError(f"--{name} is no option of {program}.")
    return values


def define_size(*tasks: str) -> None:
    """Defines `--size`, which names a preset of the task; `complete` applies the preset."""
    available = [size for size in SIZES if any(_preset(task, size).is_file() for task in tasks)]
    if available:
        sizes = ", ".join(f"{size} ({SIZES[size]})" for size in available)
        text = f"Sets options by a preset: {sizes}. Other flags and --flagfile win over it."
        flags.DEFINE_string("size", None, f"{text} [default: none]")


def complete(name: str, task: str) -> str:
    """Sets the flags of the preset of `--size` that the user has not set, and checks for a table.

    Args:
        name: The name by which the task was called: its name, or one of `DATA_COMMANDS`.
        task: The name of the task.

    Returns:
        The default name of a run: `name`, with the size.

    Raises:
        UserError: If the task lacks the size, or a command for a user's table comes without one.
    """
    # A task without presets may have an option `size`.
    size = flags.FLAGS.size if "size" in flags.FLAGS and "size" not in defined else None
    if size is not None:
        available = [size for size in SIZES if _preset(task, size).is_file()]
        if size not in available:
            raise UserError(f"--size is {size}; {name} has {', '.join(available) or 'no sizes'}.")
        lines = expand_flagfiles([f"--flagfile={_preset(task, size)}"])
        unset = {n: line for line in lines for n in files_of([line]) if not flags.FLAGS[n].present}
        applied = {n: line for n, line in unset.items() if n not in _NOT_SIZED}
        flags.FLAGS([name, *applied.values()])
        set_by.update(dict.fromkeys(applied, f"--size={size}"))
        preset.update(applied)
    table = DATA_COMMANDS.get(name)
    if table and not any(flags.FLAGS[n].present for n in (table.file_flag, "data_dir", "dataset")):
        raise UserError(
            f"{name} needs a table: --{table.file_flag}=FILE, with columns {table.columns}; "
            f"`fedpersonal {task}` trains on {table.default_data}."
        )
    return f"{name}_{size}" if size else name


def set_by_presets() -> dict[str, str]:
    """Returns the presets that have set flags, by the flags' names; not users' files of flags."""
    return {
        name: source
        for name, source in set_by.items()
        if source.startswith("--size=") or PRESETS in (ROOT / source).resolve().parents
    }


def _preset(task: str, size: str) -> pathlib.Path:
    return PRESETS / f"{task}_{size}.flags"


def typed() -> set[str]:
    """Returns the options that the user has typed, or set by the user's files of flags.

    Presets do not count: they are made for several methods, some of which ignore some options.
    """
    return {name for name in defined if flags.FLAGS[name].present and name not in preset}


class FromFile(str):
    """An argument from a file of flags.

    Attributes:
        file: The file's name.
        is_preset: Whether the file is a preset of fedpersonal.
    """

    file: str
    is_preset: bool


def expand_flagfiles(arguments: Sequence[str], within: Sequence[pathlib.Path] = ()) -> list[str]:
    """Returns arguments with `--flagfile`s replaced by the flags in these files, recursively.

    A missing file is looked up in the repository, so that presets can be named from any folder.
    `within` are the files from which the arguments were read.

    Raises:
        UserError: If a file is no text file, or includes itself.
    """
    expanded: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, has_value, path = argument.partition("=")
        if argument == "--":  # No flags follow it.
            return [*expanded, argument, *rest]
        if name not in ("-flagfile", "--flagfile"):
            expanded.append(argument)
            continue
        path = path if has_value else next(rest, "")
        try:
            file, lines = _read_lines(path)
            for line in lines:
                line.file, line.is_preset = path, file.parent == PRESETS.resolve()
            if file in within:
                raise UserError("it includes itself")
        except (UserError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"--flagfile={path}: {reason}.") from None
        expanded += expand_flagfiles(lines, (*within, file))
    return expanded


def _read_lines(path: str) -> tuple[pathlib.Path, list[FromFile]]:
    """Returns the path of a flag file, and its lines without comments."""
    workspace = pathlib.Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ROOT))
    places = [place / path for place in (pathlib.Path(), workspace, ROOT) if path]
    if pathlib.PurePath(path).parts[:-1] == ("experiments", "presets"):
        places.append(PRESETS / pathlib.PurePath(path).name)
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        exists = any(place.exists() for place in places)
        raise UserError("it is not a regular file" if exists else "there is no such file")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError("it is not UTF-8 text") from None
    if "\0" in text:
        raise UserError("it is not text: it has a NUL byte")
    lines = (FromFile(line.strip()) for line in text.splitlines())
    return file.resolve(), [line for line in lines if line and line[0] != "#"]


def rename_former(arguments: Sequence[str]) -> list[str]:
    """Returns arguments under the present names of flags, and prints a warning for former ones."""
    renamed: list[str] = []
    for argument in arguments:
        if "--" in renamed:  # No flag follows it.
            renamed.append(argument)
            continue
        text, warning = former.present_flag(argument, flags.FLAGS)
        if warning:
            print("warning:", warning, file=sys.stderr, flush=True)
        if text is not argument and isinstance(argument, FromFile):
            line = FromFile(text)
            line.file, line.is_preset = argument.file, argument.is_preset
            text = line
        renamed.append(text)
    return renamed


def mistake(error: flags.Error) -> str:
    """Returns absl's message on a flag in the format of options: name, value, expected values."""
    message = str(error)
    if missing := re.search(r"Flag --(\w+) must have a value other than None", message):
        name = missing[1]
        return f"--{name} is missing; pass --{name}=...: {flags.FLAGS[name].help}"
    wrong = re.match(r"flag --(\w+)=(.*): ", message, re.DOTALL)
    if wrong and wrong[1] in defined:
        return str(defined[wrong[1]].value_error(wrong[2]))
    if wrong and wrong[1] in flags.FLAGS and (expected := _expected(flags.FLAGS[wrong[1]].parser)):
        value = wrong[2].partition(": ")[0]  # Python's message, which follows, may have a colon.
        return f"--{wrong[1]} is {value[:80]}; it must be {expected}."
    unknown = re.match(r"Unknown command line flag '(.*?)'", message, re.DOTALL)
    if unknown:
        name = unknown[1]
        return f"--{name} is no flag{_commands(name) or did_you_mean(name, flags.FLAGS, '--')}"
    return message


def _expected(parser: flags.ArgumentParser) -> str:
    """Returns the values that a parser of numbers accepts, in words; empty for other parsers."""
    kinds = {flags.IntegerParser: "a whole number", flags.FloatParser: "a number"}
    kind = kinds.get(type(parser), "")
    bounds = {"at least": parser.lower_bound, "at most": parser.upper_bound} if kind else {}
    limits = [f"{words} {bound:,}" for words, bound in bounds.items() if bound is not None]
    return f"{kind} {' and '.join(limits)}".rstrip()


def _commands(name: str) -> str:
    """Returns advice on the commands that have a flag for a user's table; empty for other flags."""
    names = [command for command, table in DATA_COMMANDS.items() if table.file_flag == name]
    if not names:
        return ""
    command = f"`fedpersonal {names[0]} --{name}=FILE`"
    others = f" (so do {', '.join(names[1:])})" if names[1:] else ""
    return (
        f" of this command. {command} trains on your table{others}; `fedpersonal sweep {names[0]} "
        f"--{name}=FILE --grid=method=fed_avg,ditto` compares methods on it."
    )


def files_of(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the files of flags that set flags last, by the flags' names."""
    last_arguments = _last(arguments)
    return {name: last.file for name, last in last_arguments.items() if isinstance(last, FromFile)}


def presets_of(arguments: Sequence[str]) -> set[str]:
    """Returns the flags that a preset sets last."""
    return {name for name, last in _last(arguments).items() if getattr(last, "is_preset", False)}


def _last(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the last argument that sets a flag, by the flag's name."""
    last = {}
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0]
        last[name if name in flags.FLAGS else name.removeprefix("no")] = argument
    return last


def read_flagfile(path: str | os.PathLike, options: type[Options]) -> dict[str, Value]:
    """Returns the values of options in a file of flags.

    Raises:
        UserError: If it names a flag that is no option, or an invalid value.
    """
    holder = flags.FlagValues()
    for declaration in options.declarations().values():
        _define(declaration, holder)
    flags.DEFINE_string("experiment_name", None, "", flag_values=holder)
    try:
        expanded = expand_flagfiles(["flags", f"--flagfile={os.fspath(path)}"])
        rest = holder([former.present_flag(argument, holder)[0] for argument in expanded])
    except flags.Error as error:
        raise UserError(f"{path}: {mistake(error)}") from None
    if rest[1:]:
        raise UserError(f"{path}: {rest[1]!r} is no flag.")
    return {n: holder[n].value for n in options.declarations() if holder[n].present}


def _define(declaration: Declaration, holder: flags.FlagValues = flags.FLAGS) -> None:
    name, default, rule = declaration.name, declaration.default, declaration.rule
    if holder is flags.FLAGS:
        defined[name] = declaration
    if declaration.is_list:
        values = list(default) if isinstance(default, tuple) else None
        if declaration.kind is str:
            flags.DEFINE_list(name, values, rule.help, flag_values=holder)
        else:
            is_bool, serializer = declaration.kind is bool, flags.ArgumentSerializer()
            parser = flags.BooleanParser() if is_bool else _Number(declaration)
            flags.DEFINE_multi(parser, serializer, name, values, rule.help, flag_values=holder)
            holder[name].help = f"{rule.help} For several numbers, repeat the flag."
    elif rule.choices:
        flags.DEFINE_enum(name, default, rule.choices, rule.help, flag_values=holder)
    elif declaration.kind in (int, float):
        parser, serializer = _Number(declaration), flags.ArgumentSerializer()
        flags.DEFINE(parser, name, default, rule.help, holder, serializer)
    else:
        define_one = {bool: flags.DEFINE_bool, str: flags.DEFINE_string}[declaration.kind]
        define_one(name, default, rule.help, flag_values=holder)


class _Number(flags.ArgumentParser):
    """Parses a number of the option's type; the option checks its range."""

    def __init__(self, declaration: Declaration):
        self._declaration = declaration

    def parse(self, argument: str | int | float) -> int | float:
        try:
            return self._declaration.kind(argument)
        except ValueError:
            raise ValueError(f"it must be {self._declaration.expected}") from None

    def flag_type(self) -> str:
        return self._declaration.kind.__name__

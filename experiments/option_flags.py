"""The absl flags of options; each flag is declared by its option alone."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import sys
from collections.abc import Sequence

from absl import flags

from experiments.command import OWN_DATA
from fedpersonal import former
from fedpersonal.errors import UserError, did_you_mean
from fedpersonal.options import Declaration, Options, Value

# Flags belong to the binary that asks for them.
flags.disclaim_key_flags()

# The options that flags of this program stand for, by name.
defined: dict[str, Declaration] = {}
# What has set a flag, by name: a file of flags, or a size. Flags of the command line are not there.
set_by: dict[str, str] = {}
# The flags that a preset has set, by `--size` or as a file, in place of the user.
preset: set[str] = set()
# The sizes of presets, and what each is for.
SIZES = {
    "quick": "a first look",
    "paper": "as the paper trains on its data",
    "best": "the best found on MovieLens-1M",
}
# A size says neither what the data are nor where a run goes.
_NOT_SIZED = ("dataset", "experiment_name")
_PRESETS = pathlib.Path(__file__).parent / "presets"
_REPOSITORY = pathlib.Path(__file__).parents[1]


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
    """Defines one flag for each option of any of several classes; it is None unless given.

    Args:
        *classes: The classes. Where they differ, a flag takes what one of them would.
        without: Options that are no flags.

    Returns:
        Option to the classes that have it.
    """
    found: dict[str, list[tuple[type[Options], Declaration]]] = {}
    for cls in classes:
        for name, declaration in cls.declarations().items():
            if name not in without:
                found.setdefault(name, []).append((cls, declaration))
    for own in found.values():
        rule = own[0][1].rule
        choices = tuple(dict.fromkeys(c for _, d in own for c in d.rule.choices))
        texts = dict.fromkeys(d.rule.help for _, d in own)
        # Which of them matter, the help of each one's own program says.
        rule = dataclasses.replace(rule, help=" / ".join(texts), choices=choices, in_help=False)
        _define(dataclasses.replace(own[0][1], default=None, rule=rule))
    return {name: {cls for cls, _ in own} for name, own in found.items()}


def given(
    shared: dict[str, set[type[Options]]], options: type[Options], who: str
) -> dict[str, Value]:
    """Returns the options that shared flags give.

    Args:
        shared: What `define_shared` has returned.
        options: The class whose options they are.
        who: Names it to the user, such as `--task=movielens`.

    Raises:
        UserError: If a flag is given that is no option of the class.
    """
    found = {name: flags.FLAGS[name].value for name in shared if flags.FLAGS[name].present}
    for name in found:
        if options not in shared[name]:
            raise UserError(f"--{name} is no option of {who}.")
    return found


def define_size(*tasks: str) -> None:
    """Defines `--size`, which names a preset of the task; `complete` sets what that says."""
    known = [size for size in SIZES if any(_preset(task, size).is_file() for task in tasks)]
    if known:
        sizes = ", ".join(f"{size} ({SIZES[size]})" for size in known)
        text = f"Sets options by a preset: {sizes}. Other flags and --flagfile win over it."
        flags.DEFINE_string("size", None, f"{text} [default: none]")


def complete(name: str, task: str) -> str:
    """Sets the flags of the size asked for that nobody has set, and looks for a table.

    Args:
        name: The name by which the task was called, perhaps one of `OWN_DATA`.
        task: The task's own name.

    Returns:
        What a run is called: the name, and the size.

    Raises:
        UserError: If the task lacks the size, or a name for one's own data comes without a table.
    """
    # A task that has no presets may have an option of that name.
    size = flags.FLAGS.size if "size" in flags.FLAGS and "size" not in defined else None
    if size is not None:
        known = [size for size in SIZES if _preset(task, size).is_file()]
        if size not in known:
            raise UserError(f"--size is {size}; {name} has {', '.join(known) or 'no sizes'}.")
        lines = expand_flagfiles([f"--flagfile={_preset(task, size)}"])
        unset = {n: line for line in lines for n in files_of([line]) if not flags.FLAGS[n].present}
        told = {n: line for n, line in unset.items() if n not in _NOT_SIZED}
        flags.FLAGS([name, *told.values()])
        set_by.update(dict.fromkeys(told, f"--size={size}"))
        preset.update(told)
    own = OWN_DATA.get(name)
    if own and not any(flags.FLAGS[n].present for n in (own.file_flag, "data_dir", "dataset")):
        raise UserError(
            f"{name} needs a table: --{own.file_flag}=FILE, with columns {own.columns}; "
            f"`fedpersonal {task}` trains on {own.instead}."
        )
    return f"{name}_{size}" if size else name


def set_by_presets() -> dict[str, str]:
    """Returns which preset has set a flag, by name; neither the command line nor other files."""
    return {
        name: source
        for name, source in set_by.items()
        if source.startswith("--size=") or _PRESETS in (_REPOSITORY / source).resolve().parents
    }


def _preset(task: str, size: str) -> pathlib.Path:
    return _PRESETS / f"{task}_{size}.flags"


def typed() -> set[str]:
    """Returns the options that the user has typed, or has set by a file of flags of their own.

    A preset is made for several methods, each of which reads what it has.
    """
    return {name for name in defined if flags.FLAGS[name].present and name not in preset}


class FromFile(str):
    """An argument that stands in a file of flags.

    Attributes:
        file: The file's name.
        is_preset: Whether it is a preset that comes with the programs.
    """

    file: str
    is_preset: bool


def expand_flagfiles(arguments: Sequence[str], within: Sequence[pathlib.Path] = ()) -> list[str]:
    """Returns arguments with what flag files say in their place, those that they name, too.

    A file that is not there is looked for in the repository, so that presets are found from any
    folder. `within` are the files in which the arguments stand.

    Raises:
        UserError: If one is no text file, or includes itself.
    """
    expanded: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, has_value, path = argument.partition("=")
        if argument == "--":  # What follows is no flag.
            return [*expanded, argument, *rest]
        if name not in ("-flagfile", "--flagfile"):
            expanded.append(argument)
            continue
        path = path if has_value else next(rest, "")
        try:
            found, lines = _read_lines(path)
            for line in lines:
                line.file, line.is_preset = path, found.parent == _PRESETS.resolve()
            if found in within:
                raise UserError("it includes itself")
        except (UserError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"--flagfile={path}: {reason}.") from None
        expanded += expand_flagfiles(lines, (*within, found))
    return expanded


def _read_lines(path: str) -> tuple[pathlib.Path, list[FromFile]]:
    """Returns where a flag file is, and its lines without comments."""
    workspace = pathlib.Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", _REPOSITORY))
    places = [place / path for place in (pathlib.Path(), workspace, _REPOSITORY) if path]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        is_there = any(place.exists() for place in places)
        raise UserError("it is not a regular file" if is_there else "there is no such file")
    try:
        text = found.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError("it is not UTF-8 text") from None
    if "\0" in text:
        raise UserError("it is not text: it has a NUL byte")
    lines = (FromFile(line.strip()) for line in text.splitlines())
    return found.resolve(), [line for line in lines if line and line[0] != "#"]


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
    """Returns what absl says against a flag as an option says it: name, value, what is right."""
    said = str(error)
    if missing := re.search(r"Flag --(\w+) must have a value other than None", said):
        name = missing[1]
        return f"--{name} is missing; give --{name}=...: {flags.FLAGS[name].help}"
    wrong = re.match(r"flag --(\w+)=(.*): ", said, re.DOTALL)
    if wrong and wrong[1] in defined:
        return str(defined[wrong[1]].mistake(wrong[2]))
    if wrong and wrong[1] in flags.FLAGS and (wanted := _wanted(flags.FLAGS[wrong[1]].parser)):
        value = wrong[2].partition(": ")[0]  # Python's own complaint may have a colon.
        return f"--{wrong[1]} is {value[:80]}; it must be {wanted}."
    unknown = re.match(r"Unknown command line flag '(.*?)'", said, re.DOTALL)
    if unknown:
        name = unknown[1]
        return f"--{name} is no flag{_commands(name) or did_you_mean(name, flags.FLAGS, '--')}"
    return said


def _wanted(parser: flags.ArgumentParser) -> str:
    """Returns what a parser of numbers takes, in words; of others it is empty."""
    kinds = {flags.IntegerParser: "a whole number", flags.FloatParser: "a number"}
    kind = kinds.get(type(parser), "")
    bounds = {"at least": parser.lower_bound, "at most": parser.upper_bound} if kind else {}
    limits = [f"{words} {bound:,}" for words, bound in bounds.items() if bound is not None]
    return f"{kind} {' and '.join(limits)}".rstrip()


def _commands(name: str) -> str:
    """Returns which commands have a flag that names a user's own table; of others nothing."""
    found = [command for command, own in OWN_DATA.items() if own.file_flag == name]
    if not found:
        return ""
    command = f"`fedpersonal {found[0]} --{name}=FILE`"
    others = f" (so do {', '.join(found[1:])})" if found[1:] else ""
    return (
        f" of this command. {command} trains on your table{others}; `fedpersonal sweep {found[0]} "
        f"--{name}=FILE --grid=method=fed_avg,ditto` compares methods on it."
    )


def files_of(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the file of flags that has the last word on a flag, by the flags that have one."""
    found = _last(arguments)
    return {name: last.file for name, last in found.items() if isinstance(last, FromFile)}


def presets_of(arguments: Sequence[str]) -> set[str]:
    """Returns the flags on which a preset has the last word."""
    return {name for name, last in _last(arguments).items() if getattr(last, "is_preset", False)}


def _last(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the argument that has the last word on a flag, by flag."""
    found = {}
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0]
        found[name if name in flags.FLAGS else name.removeprefix("no")] = argument
    return found


def read_flagfile(path: str | os.PathLike, options: type[Options]) -> dict[str, Value]:
    """Returns the values that a file of flags gives to options.

    Raises:
        UserError: If it names a flag that is no option, or a value that is none.
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
            holder[name].help = f"{rule.help} For several numbers, give it several times."
    elif rule.choices:
        flags.DEFINE_enum(name, default, rule.choices, rule.help, flag_values=holder)
    elif declaration.kind in (int, float):
        parser, serializer = _Number(declaration), flags.ArgumentSerializer()
        flags.DEFINE(parser, name, default, rule.help, holder, serializer)
    else:
        define_one = {bool: flags.DEFINE_bool, str: flags.DEFINE_string}[declaration.kind]
        define_one(name, default, rule.help, flag_values=holder)


class _Number(flags.ArgumentParser):
    """Takes what the option takes, and says what that is; the option checks the range."""

    def __init__(self, declaration: Declaration):
        self._declaration = declaration

    def parse(self, argument: str | int | float) -> int | float:
        try:
            return self._declaration.kind(argument)
        except ValueError:
            raise ValueError(f"it must be {self._declaration.wanted}") from None

    def flag_type(self) -> str:
        return self._declaration.kind.__name__

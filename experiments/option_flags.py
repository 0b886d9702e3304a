"""The absl flags of options; each flag is declared by its option alone."""

from __future__ import annotations

import os

from absl import flags

from fedpersonal.errors import UserError
from fedpersonal.options import Declaration, Options, Value

# Flags belong to the binary that asks for them.
flags.disclaim_key_flags()


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
        rest = holder(["flags", f"--flagfile={os.fspath(path)}"])
    except flags.Error as error:
        raise UserError(f"{path}: {error}") from None
    if rest[1:]:
        raise UserError(f"{path}: {rest[1]!r} is no flag.")
    return {n: holder[n].value for n in options.declarations() if holder[n].present}


def _define(declaration: Declaration, holder: flags.FlagValues = flags.FLAGS) -> None:
    name, default, rule = declaration.name, declaration.default, declaration.rule
    if isinstance(default, tuple):
        define_list = {int: flags.DEFINE_multi_integer, str: flags.DEFINE_list}[declaration.kind]
        define_list(name, list(default), rule.help, flag_values=holder)
    elif rule.choices:
        flags.DEFINE_enum(name, default, rule.choices, rule.help, flag_values=holder)
    else:
        define_one = {
            bool: flags.DEFINE_bool,
            int: flags.DEFINE_integer,
            float: flags.DEFINE_float,
            str: flags.DEFINE_string,
        }[declaration.kind]
        define_one(name, default, rule.help, flag_values=holder)

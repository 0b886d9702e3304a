"""Options, each declared once.

A field of an `Options` class has a type, a default, a range and a help text. They determine its
check, its absl flag, its entry in `config.json`, the class' docstring and the reference page.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Union

from fedpersonal import former as former_names
from fedpersonal.errors import UserError, did_you_mean

Value = Union[bool, int, float, str, tuple, None]
_Options = TypeVar("_Options", bound="Options")

# No number of this project is larger, so a mistyped digit fails before any work.
_MAX_NUMBER = 10**9
_KINDS = {"bool": bool, "int": int, "float": float, "str": str}


@dataclasses.dataclass(frozen=True)
class ValueRule:
    """The values that an option may have.

    Attributes:
        help: The help text.
        choices: The allowed values; empty for any.
        at_least: The lower bound of a number, or of each number of a list; None for minus a
            billion.
        above: The exclusive lower bound.
        at_most: The upper bound; None for a billion.
        may_differ: Whether a resumed run may use another value.
        in_help: Whether the short help of a program shows the option, also where a subclass
            declares it anew.
        refusals: Pairs of a value that only other programs accept and the reason.
    """

    help: str
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    may_differ: bool = False
    in_help: bool = False
    refusals: tuple[tuple[str, str], ...] = ()

    def range(self, kind: type) -> str:
        """Returns the range of an `int` or `float` in words; "" for other types."""
        if kind not in (int, float):
            return ""
        at_most = _MAX_NUMBER if self.at_most is None else self.at_most
        bounds = [("at least", self.at_least), ("above", self.above), ("at most", at_most)]
        return " and ".join(f"{words} {bound:,}" for words, bound in bounds if bound is not None)

    def allows(self, value: Any) -> bool:
        """Returns whether a value is among the choices and in the range."""
        if isinstance(value, (bool, str)):
            return not self.choices or value in self.choices
        at_least = -_MAX_NUMBER if self.at_least is None else self.at_least
        at_most = _MAX_NUMBER if self.at_most is None else self.at_most
        return at_least <= value <= at_most and (self.above is None or value > self.above)


@former_names.renamed_arguments(others="refusals")
def option(default: Value, help: str, **rule: Any) -> Any:
    """Declares an option, a field of an `Options` class, by its default and `ValueRule`."""
    return dataclasses.field(default=default, metadata={"rule": ValueRule(help, **rule)})


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The declaration of one option of a class.

    Attributes:
        name: The name of the option and of its flag.
        kind: `bool`, `int`, `float` or `str`.
        is_list: Whether the option is a list of values of that kind.
        is_optional: Whether the value may be None.
        default: The default value.
        rule: The allowed values.
        help_section: The first line of the docstring of the class that first declared the option.
    """

    name: str
    kind: type
    is_list: bool
    is_optional: bool
    default: Value
    rule: ValueRule
    help_section: str

    def check(self, value: Value) -> Value:
        """Returns the value converted to the option's type.

        Raises:
            UserError: If the value has another type or is out of range.
        """
        if value is None and self.is_optional:
            return None
        if not self.is_list:
            return self._check_one(value, value)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.value_error(value)
        return tuple(self._check_one(one, value) for one in value)

    @property
    def expected(self) -> str:
        """The allowed values in words."""
        if self.rule.choices:
            return f"one of {', '.join(self.rule.choices)}"
        kind = {bool: "true or false", int: "a whole number", float: "a finite number"}
        return f"{kind.get(self.kind, 'a text')} {self.rule.range(self.kind)}".rstrip()

    def flags(self, value: Value) -> list[str]:
        """Returns the flags that set the option to a value; none for None."""
        if value is None:
            return []
        if isinstance(value, bool):
            return [f"--{self.name}" if value else f"--no{self.name}"]
        if not isinstance(value, tuple):
            return [f"--{self.name}={value}"]
        if self.kind is not str:
            return [f"--{self.name}={one}" for one in value]
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(value)  # Quotes texts with commas.
        return [f"--{self.name}={line.getvalue()}"]

    def _check_one(self, value: Any, shown: Value) -> Any:
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            is_whole = isinstance(value, numbers.Integral)
            if (self.kind is float or (self.kind is int and is_whole)) and self.rule.allows(value):
                value = self.kind(value)
        if type(value) is not self.kind or not self.rule.allows(value):
            raise self.value_error(shown)
        return value

    def value_error(self, value: Value) -> UserError:
        """Returns the error that refuses a value."""
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        each = "each must be" if self.is_list else "it must be"
        reason = dict(self.rule.refusals).get(shown)
        if reason:
            return UserError(f"--{self.name} is {shown}; {reason}. --help lists those that fit.")
        end = did_you_mean(shown, self.rule.choices)
        return UserError(f"--{self.name} is {shown[:80]}; {each} {self.expected}{end}")


class OptionGroup:
    """A group of options that describe one object, such as an optimizer.

    An attribute of an `Options` class that is a group declares its options. `Options.build` then
    returns the object.

    Attributes:
        prefix: The prefix of the options' names.
        members: Option name to its type, written as an annotation, and its field.
    """

    prefix: str
    members: Mapping[str, tuple[str, dataclasses.Field]]

    def build(self, options: Any) -> Any:
        """Returns the object that the options describe."""
        raise NotImplementedError


class Options:
    """Base class of options; a subclass becomes a frozen dataclass that checks its values.

    `class MyOptions(Training, defaults={"seed": 1})` inherits the options of `Training` with
    another default. A class may inherit several.
    """

    _declared: ClassVar[Mapping[str, Declaration]] = {}
    _groups: ClassVar[Mapping[str, OptionGroup]] = {}
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]

    if TYPE_CHECKING:  # Each subclass has a dataclass' constructor.

        def __init__(self, **values: Any): ...

    def __init_subclass__(cls, defaults: Mapping[str, Value] | None = None, **kwargs: object):
        """Makes the subclass a dataclass and changes inherited defaults."""
        super().__init_subclass__(**kwargs)
        inherited: dict[str, dataclasses.Field] = {}
        for base in reversed(cls.__mro__[1:]):
            inherited.update(getattr(base, "__dataclass_fields__", {}))
        annotations = _expand_groups(cls)
        for name, default in (defaults or {}).items():
            if name not in inherited:
                raise TypeError(f"{cls.__name__}: {name!r} is no inherited option.")
            field = inherited[name]
            setattr(cls, name, dataclasses.field(default=default, metadata=field.metadata))
            annotations[name] = field.type
        docstring = (cls.__dict__.get("__doc__") or f"Options of {cls.__name__}.").rstrip()
        dataclasses.dataclass(frozen=True)(cls)
        cls.__init__ = _accept_former_names(cls.__init__)  # type: ignore[method-assign]
        options = [f for f in dataclasses.fields(cls) if "rule" in f.metadata]
        former_declarations: dict[str, Declaration] = {}
        for base in reversed(cls.__mro__[1:]):
            former_declarations.update(getattr(base, "_declared", {}))
        section = docstring.splitlines()[0]
        cls._declared = {
            f.name: _declare(f, section, former_declarations.get(f.name)) for f in options
        }
        lines = [f"    {d.name}: {d.rule.help}" for d in cls._declared.values()]
        cls.__doc__ = "\n".join([docstring, "", "Attributes:", *lines]) if lines else docstring
        for declaration in cls._declared.values():
            declaration.check(declaration.default)

    families = former_names.FormerAttribute("groups")
    idle = former_names.FormerAttribute("idle_error")

    def __post_init__(self):
        for name, declaration in self._declared.items():
            object.__setattr__(self, name, declaration.check(getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Raises a `UserError` if options contradict each other; subclasses override it."""

    def refuse_idle(self, *names: str, where: str, unless: str = "") -> None:
        """Raises a `UserError` if an option without effect differs from its default.

        Args:
            names: The options without effect.
            where: The circumstances, such as `with --local_steps=10`.
            unless: The flag that would give them an effect, such as `--local_steps=0`, or "".
        """
        for name in names:
            if getattr(self, name) != self._declared[name].default:
                raise self.idle_error(name, where=where, unless=unless)

    def idle_error(self, name: str, *, where: str, unless: str = "") -> UserError:
        """Returns the error that `refuse_idle` raises for an option; the arguments are the same."""
        declaration, value = self._declared[name], getattr(self, name)
        default = " ".join(declaration.flags(declaration.default)) or "none"
        unless = f", or give {unless}" if unless else ""
        return UserError(
            f"--{name} is {value}, which has no effect {where}: leave it out (its default is "
            f"{default}){unless}."
        )

    def build(self, prefix: str, **changes: Any) -> Any:
        """Returns the object that a group of options describes, such as `build("client")`."""
        if prefix not in self._groups:
            nearest = did_you_mean(prefix, self._groups)
            raise TypeError(f"{type(self).__name__} has no option group {prefix!r}{nearest}")
        return self._groups[prefix].build(self, **changes)

    @classmethod
    def groups(cls) -> Mapping[str, OptionGroup]:
        """Returns the option groups by prefix."""
        return cls._groups

    @classmethod
    def declarations(cls) -> Mapping[str, Declaration]:
        """Returns the declarations by option name, in order."""
        return cls._declared

    def values(self) -> dict[str, Value]:
        """Returns the value of each option by name."""
        return {name: getattr(self, name) for name in self._declared}

    def replace(self: _Options, **changes: Value) -> _Options:
        """Returns a copy of the options with changed values."""
        return dataclasses.replace(self, **changes)


def _accept_former_names(init: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor of options, so that it accepts their former names, too."""

    @functools.wraps(init)
    def renamed(self: Any, *args: Any, **values: Any) -> None:
        init(self, *args, **former_names.present_arguments(values, self.__dataclass_fields__))

    return renamed


def _expand_groups(cls: type[Options]) -> dict[str, Any]:
    """Replaces the option groups of a class by their options; returns its annotations in order."""
    annotations = cls.__dict__.get("__annotations__", {})
    expanded: dict[str, Any] = {}
    groups = {
        prefix: group
        for base in reversed(cls.__mro__[1:])
        for prefix, group in getattr(base, "_groups", {}).items()
    }
    for name, value in list(vars(cls).items()):
        if isinstance(value, OptionGroup):
            groups[value.prefix] = value
            delattr(cls, name)
            for member, (kind, field) in value.members.items():
                setattr(cls, member, field)
                expanded[member] = kind
        elif name in annotations:
            expanded[name] = annotations[name]
    cls.__annotations__, cls._groups = {**expanded, **annotations}, groups
    return cls.__annotations__


def _declare(field: dataclasses.Field, section: str, former: Declaration | None) -> Declaration:
    kind: Any = field.type
    annotation = (kind.__name__ if type(kind) is type else str(kind)).replace(" ", "")
    kind, is_list = annotation.split("|")[0], annotation.startswith("tuple[")
    kind = _KINDS[kind[len("tuple[") :].split(",")[0] if is_list else kind]
    default: Any = field.default
    is_optional = annotation.endswith("|None")
    rule = field.metadata["rule"]
    if former:
        rule = dataclasses.replace(rule, in_help=rule.in_help or former.rule.in_help)
        section = former.help_section
    return Declaration(field.name, kind, is_list, is_optional, default, rule, section)


def join(name: str, *classes: type[Options]) -> type[Options]:
    """Returns a class that has the options of several classes.

    Args:
        name: The name of the class.
        *classes: The classes; an option of two classes has the default of the first one.
    """
    bases: list[type[Options]] = []
    for cls in classes:
        if not any(issubclass(base, cls) for base in bases):
            bases = [base for base in bases if not issubclass(cls, base)] + [cls]
    defaults: dict[str, Value] = {}
    for cls in reversed(classes):
        defaults.update({n: d.default for n, d in cls.declarations().items()})
    return type(name, tuple(bases), {"__module__": __name__}, defaults=defaults)

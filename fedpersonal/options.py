"""Options that are declared once.

A field of an `Options` class has a type, a default, a range and a help text. From these come its
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
_Own = TypeVar("_Own", bound="Options")

# Nothing that this project counts is larger; a slip of a digit shows before any work.
_MOST = 10**9
_KINDS = {"bool": bool, "int": int, "float": float, "str": str}


@dataclasses.dataclass(frozen=True)
class Rule:
    """What values an option may have.

    Attributes:
        help: A short text for people.
        choices: The only values, or none for any.
        at_least: Lower bound of a number, or of each number of a list.
        above: The same, exclusive.
        at_most: Upper bound; None for a billion, which is the lower bound too where none is given.
        may_differ: Whether a run may go on with another value.
        in_help: Whether the short help of a program shows it, also where a subclass declares it
            anew.
        others: Values of other programs, each with the reason why it is none here.
    """

    help: str
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    may_differ: bool = False
    in_help: bool = False
    others: tuple[tuple[str, str], ...] = ()

    def range(self, kind: type) -> str:
        """Returns the range of numbers of a kind in words; of others there is none."""
        if kind not in (int, float):
            return ""
        most = _MOST if self.at_most is None else self.at_most
        bounds = [("at least", self.at_least), ("above", self.above), ("at most", most)]
        return " and ".join(f"{words} {bound:,}" for words, bound in bounds if bound is not None)

    def allows(self, value: Any) -> bool:
        """Tells whether a value is among the choices and in the range."""
        if isinstance(value, (bool, str)):
            return not self.choices or value in self.choices
        least = -_MOST if self.at_least is None else self.at_least
        most = _MOST if self.at_most is None else self.at_most
        return least <= value <= most and (self.above is None or value > self.above)


def option(default: Value, help: str, **rule: Any) -> Any:
    """Declares an option, a field of an `Options` class, by its default and its `Rule`."""
    return dataclasses.field(default=default, metadata={"rule": Rule(help, **rule)})


@dataclasses.dataclass(frozen=True)
class Declaration:
    """An option of a class.

    Attributes:
        name: Its name, that of its flag too.
        kind: `bool`, `int`, `float` or `str`.
        is_list: Whether it has several values of that kind.
        is_optional: Whether it may be None.
        default: Its default.
        rule: Its values.
        group: The first line of the docstring of the class that has declared it first.
    """

    name: str
    kind: type
    is_list: bool
    is_optional: bool
    default: Value
    rule: Rule
    group: str

    def check(self, value: Value) -> Value:
        """Returns the value in the option's type.

        Raises:
            UserError: If it has another type or is out of range.
        """
        if value is None and self.is_optional:
            return None
        if not self.is_list:
            return self._check_one(value, value)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.mistake(value)
        return tuple(self._check_one(one, value) for one in value)

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        if self.rule.choices:
            return f"one of {', '.join(self.rule.choices)}"
        kind = {bool: "true or false", int: "a whole number", float: "a finite number"}
        return f"{kind.get(self.kind, 'a text')} {self.rule.range(self.kind)}".rstrip()

    def flags(self, value: Value) -> list[str]:
        """Returns the flags that give it this value; none for None."""
        if value is None:
            return []
        if isinstance(value, bool):
            return [f"--{self.name}" if value else f"--no{self.name}"]
        if not isinstance(value, tuple):
            return [f"--{self.name}={value}"]
        if self.kind is not str:
            return [f"--{self.name}={one}" for one in value]
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(value)  # A text may have commas.
        return [f"--{self.name}={line.getvalue()}"]

    def _check_one(self, value: Any, shown: Value) -> Any:
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            is_whole = isinstance(value, numbers.Integral)
            if (self.kind is float or (self.kind is int and is_whole)) and self.rule.allows(value):
                value = self.kind(value)
        if type(value) is not self.kind or not self.rule.allows(value):
            raise self.mistake(shown)
        return value

    def mistake(self, value: Value) -> UserError:
        """Returns the error of a value that the option does not take."""
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        each = "each must be" if self.is_list else "it must be"
        reason = dict(self.rule.others).get(shown)
        if reason:
            return UserError(f"--{self.name} is {shown}; {reason}. --help lists those that fit.")
        end = did_you_mean(shown, self.rule.choices)
        return UserError(f"--{self.name} is {shown[:80]}; {each} {self.wanted}{end}")


class Family:
    """Options that belong together and describe one object, such as an optimizer.

    As an attribute of an `Options` class it declares them; `Options.build` then gives the object.

    Attributes:
        prefix: What their names begin with.
        members: Of each option its type, as an annotation has it, and its field, by name.
    """

    prefix: str
    members: Mapping[str, tuple[str, dataclasses.Field]]

    def build(self, options: Any) -> Any:
        """Returns what the options describe."""
        raise NotImplementedError


class Options:
    """Options of something; a subclass becomes a frozen dataclass that checks its values.

    `class Own(Training, defaults={"seed": 1})` inherits the options of `Training` with another
    default. Several bases may be joined.
    """

    _declared: ClassVar[Mapping[str, Declaration]] = {}
    _families: ClassVar[Mapping[str, Family]] = {}
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]

    if TYPE_CHECKING:  # Each subclass has that of a dataclass.

        def __init__(self, **values: Any): ...

    def __init_subclass__(cls, defaults: Mapping[str, Value] | None = None, **kwargs: object):
        """Makes a dataclass of the subclass, with the inherited defaults changed."""
        super().__init_subclass__(**kwargs)
        inherited: dict[str, dataclasses.Field] = {}
        for base in reversed(cls.__mro__[1:]):
            inherited.update(getattr(base, "__dataclass_fields__", {}))
        own = _spread_families(cls)
        for name, default in (defaults or {}).items():
            if name not in inherited:
                raise TypeError(f"{cls.__name__}: {name!r} is no inherited option.")
            field = inherited[name]
            setattr(cls, name, dataclasses.field(default=default, metadata=field.metadata))
            own[name] = field.type
        said = (cls.__dict__.get("__doc__") or f"Options of {cls.__name__}.").rstrip()
        dataclasses.dataclass(frozen=True)(cls)
        cls.__init__ = _renaming(cls.__init__)  # type: ignore[method-assign]
        options = [f for f in dataclasses.fields(cls) if "rule" in f.metadata]
        former: dict[str, Declaration] = {}
        for base in reversed(cls.__mro__[1:]):
            former.update(getattr(base, "_declared", {}))
        group = said.splitlines()[0]
        cls._declared = {f.name: _declare(f, group, former.get(f.name)) for f in options}
        lines = [f"    {d.name}: {d.rule.help}" for d in cls._declared.values()]
        cls.__doc__ = "\n".join([said, "", "Attributes:", *lines]) if lines else said
        for declaration in cls._declared.values():
            declaration.check(declaration.default)

    def __post_init__(self):
        for name, declaration in self._declared.items():
            object.__setattr__(self, name, declaration.check(getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Raises a `UserError` where options contradict each other; for subclasses."""

    def refuse_idle(self, *names: str, where: str, unless: str = "") -> None:
        """Raises a `UserError` if an option that has no effect is not left at its default.

        Args:
            names: Options that have none.
            where: Where that is, such as `with --local_steps=10`.
            unless: What would give them an effect, such as `--local_steps=0`; empty for nothing.
        """
        for name in names:
            if getattr(self, name) != self._declared[name].default:
                raise self.idle(name, where=where, unless=unless)

    def idle(self, name: str, *, where: str, unless: str = "") -> UserError:
        """Returns the error of an option that has no effect; the arguments are `refuse_idle`'s."""
        declared, value = self._declared[name], getattr(self, name)
        usual = " ".join(declared.flags(declared.default)) or "none"
        unless = f", or give {unless}" if unless else ""
        return UserError(
            f"--{name} is {value}, which has no effect {where}: leave it out (its default is "
            f"{usual}){unless}."
        )

    def build(self, prefix: str, **changes: Any) -> Any:
        """Returns what the options of a family describe, such as `build("client")`."""
        if prefix not in self._families:
            nearest = did_you_mean(prefix, self._families)
            raise TypeError(f"{type(self).__name__} has no family {prefix!r}{nearest}")
        return self._families[prefix].build(self, **changes)

    @classmethod
    def families(cls) -> Mapping[str, Family]:
        """Returns the families of options by their prefixes."""
        return cls._families

    @classmethod
    def declarations(cls) -> Mapping[str, Declaration]:
        """Returns the options by name, in the order of their declaration."""
        return cls._declared

    def values(self) -> dict[str, Value]:
        """Returns the value of each option by name."""
        return {name: getattr(self, name) for name in self._declared}

    def replace(self: _Own, **changes: Value) -> _Own:
        """Returns the options with other values of some."""
        return dataclasses.replace(self, **changes)


def _renaming(init: Callable[..., None]) -> Callable[..., None]:
    """Returns the constructor of options that takes their former names, too."""

    @functools.wraps(init)
    def renamed(self: Any, *args: Any, **values: Any) -> None:
        init(self, *args, **former_names.present_arguments(values, self.__dataclass_fields__))

    return renamed


def _spread_families(cls: type[Options]) -> dict[str, Any]:
    """Replaces the families of a class by their options; returns its annotations, in order."""
    annotations = cls.__dict__.get("__annotations__", {})
    own: dict[str, Any] = {}
    families = {
        prefix: f
        for base in reversed(cls.__mro__[1:])
        for prefix, f in getattr(base, "_families", {}).items()
    }
    for name, value in list(vars(cls).items()):
        if isinstance(value, Family):
            families[value.prefix] = value
            delattr(cls, name)
            for member, (kind, field) in value.members.items():
                setattr(cls, member, field)
                own[member] = kind
        elif name in annotations:
            own[name] = annotations[name]
    cls.__annotations__, cls._families = {**own, **annotations}, families
    return cls.__annotations__


def _declare(field: dataclasses.Field, group: str, former: Declaration | None) -> Declaration:
    kind: Any = field.type
    said = (kind.__name__ if type(kind) is type else str(kind)).replace(" ", "")
    kind, is_list = said.split("|")[0], said.startswith("tuple[")
    kind = _KINDS[kind[len("tuple[") :].split(",")[0] if is_list else kind]
    default: Any = field.default
    is_optional = said.endswith("|None")
    rule = field.metadata["rule"]
    if former:
        rule = dataclasses.replace(rule, in_help=rule.in_help or former.rule.in_help)
        group = former.group
    return Declaration(field.name, kind, is_list, is_optional, default, rule, group)


def join(name: str, *classes: type[Options]) -> type[Options]:
    """Returns a class with the options of several, an option of two classes being one.

    Args:
        name: Its name.
        *classes: The classes; where two have an option, the first one's default holds.
    """
    bases: list[type[Options]] = []
    for cls in classes:
        if not any(issubclass(base, cls) for base in bases):
            bases = [base for base in bases if not issubclass(cls, base)] + [cls]
    defaults: dict[str, Value] = {}
    for cls in reversed(classes):
        defaults.update({n: d.default for n, d in cls.declarations().items()})
    return type(name, tuple(bases), {"__module__": __name__}, defaults=defaults)

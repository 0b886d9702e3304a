"""The function that makes a method's algorithm in a program, from what the method declares."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedpersonal import former
from fedpersonal.errors import check_choice, did_you_mean
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.method import FinetuningOptions, Method, RebuildingOptions
from fedpersonal.methods.phases import GradientPhase
from fedpersonal.optimizers import OptimizerFamily
from fedpersonal.options import Declaration

# A program gives these to others: `Trainer`, `Algorithm.stateless_twin`, `ScheduledOptimizer`.
_OF_RUNS = ("local_steps", "shuffle", "decay_rounds", "local_state", "local_start")


def constructor(
    method: type[Method], *, without: Collection[str] = (), **defaults: Any
) -> Callable[..., Algorithm]:
    """Returns the function that makes the algorithm of a method in a program.

    It takes by keyword the options of a round, and optimizers in place of their names and rates:
    `ditto(client_optimizer=..., pull=0.5)`.

    Args:
        method: The method.
        without: Options that it does not take.
        **defaults: Other defaults; and further arguments with theirs, fields of `GradientPhase`.
    """
    families, options = _families(method), _options(method, without)
    known: dict[str, Any] = {
        f.parameter: None if f.stand_in else inspect.Parameter.empty for f in families.values()
    }
    known.update({n: None if n[:4] == "max_" else d.default for n, d in options.items()})
    known.update(defaults)
    known = dict(sorted(known.items(), key=lambda one: one[1] is not inspect.Parameter.empty))
    signature = inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d) for n, d in known.items()]
    )
    kinds = {field.name: str(field.type) for field in dataclasses.fields(GradientPhase)}
    kinds.update({f.parameter: "AnyOptimizer" for f in families.values()})
    kinds.update({name: _kind(declared) for name, declared in options.items()})
    typed = [
        p.replace(annotation=kinds[p.name] + (" | None" if p.default is None else ""))
        for p in signature.parameters.values()
    ]
    further = [name for name in defaults if name not in options]

    def make(**arguments: Any) -> Algorithm:
        arguments = former.present_arguments(arguments, known)
        for name in arguments:
            if name not in known:
                nearest = did_you_mean(name, known)
                raise TypeError(f"{method.trains_as} has no argument {name!r}{nearest}")
        try:
            bound = signature.bind(**arguments)
        except TypeError as error:
            raise TypeError(f"{method.trains_as}: {error}; it takes {signature}.") from None
        bound.apply_defaults()
        values = bound.arguments
        idle = sorted({*RebuildingOptions.declarations()} & {*arguments})
        is_built = values.get("reconstruction_optimizer") or values.get("reconstruction") == "ridge"
        if idle and method.local_variables == "kept" and not is_built:
            raise TypeError(
                f"{method.trains_as}: {idle[0]} has no effect without a reconstruction_optimizer."
            )
        for name, declared in options.items():
            if declared.rule.choices:
                check_choice(method.trains_as, name, values[name], declared.rule.choices)
        optimizers = {prefix: values[family.parameter] for prefix, family in families.items()}
        fields = {name: values[name] for name in further if values[name] is not None}
        return method(_Arguments(values, optimizers), further=fields).algorithm()

    make.__name__ = make.__qualname__ = method.trains_as
    make.__module__ = method.__module__
    make.__doc__ = _docstring(method, families, options)
    make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        typed, return_annotation="Algorithm"
    )
    return make


class _Arguments(types.SimpleNamespace):
    """What a program gives, to be read as options of a run are."""

    def __init__(self, values: Mapping[str, Any], optimizers: Mapping[str, Any]):
        super().__init__(**{"local_steps": 0, "local_state": "kept", **values})
        self._optimizers = optimizers

    def build(self, prefix: str) -> Any:
        """Returns the optimizer that was given, or None."""
        return self._optimizers.get(prefix)


def _families(method: type[Method]) -> dict[str, OptimizerFamily]:
    """Returns what optimizers a round has, by the prefixes of their options."""
    families = {p: f for p, f in method.options.families().items() if p != "finetuning"}
    if method.local_variables == "none":
        families.pop("reconstruction", None)
    return {p: f for p, f in families.items() if isinstance(f, OptimizerFamily)}


def _options(method: type[Method], without: Collection[str]) -> dict[str, Declaration]:
    """Returns the options of a round, but for those of optimizers."""
    idle = {*_OF_RUNS, *without, *FinetuningOptions.declarations()}
    if method.local_variables == "none":
        idle.update(RebuildingOptions.declarations())
    for family in method.options.families().values():
        idle.update(family.members)
    return {n: d for n, d in method.options.declarations().items() if n not in idle}


def _kind(declared: Declaration) -> str:
    """Returns the type of an option as an annotation has it, but for None."""
    if declared.rule.choices:
        return f"Literal[{', '.join(map(repr, declared.rule.choices))}]"
    return declared.kind.__name__


def _docstring(
    method: type[Method],
    families: Mapping[str, OptimizerFamily],
    options: Mapping[str, Declaration],
) -> str:
    when = "in a round" if method.trains else "before it predicts"
    lines = [f"Returns what a client of {method.title} does {when}.", "", "Args:"]
    for family in families.values():
        end = "; None where another one does its work" if family.stand_in else ""
        lines.append(f"    {family.parameter}: An optimizer of TFF's or of Keras'{end}.")
    lines += [f"    {name}: {declared.rule.help}" for name, declared in options.items()]
    return "\n".join(lines)

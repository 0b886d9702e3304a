"""The functions that build methods' algorithms in programs, from the methods' declarations."""

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
from fedpersonal.optimizers import OptimizerGroup
from fedpersonal.options import Declaration

# In a program these belong to `Trainer`, `Algorithm.stateless_twin` or `ScheduledOptimizer`.
_OF_RUNS = ("local_steps", "shuffle", "decay_rounds", "local_state", "local_start")


def constructor(
    method: type[Method], *, without: Collection[str] = (), **defaults: Any
) -> Callable[..., Algorithm]:
    """Returns the function that builds the algorithm of a method in a program.

    Its keyword arguments are the options of a round, and optimizers in place of their names and
    rates: `ditto(client_optimizer=..., pull=0.5)`.

    Args:
        method: The method.
        without: Options that are no arguments.
        **defaults: Other default values; and further arguments, fields of `GradientPhase`, with
            their default values.
    """
    groups, options = _groups(method), _options(method, without)
    parameters: dict[str, Any] = {
        f.parameter: None if f.is_optional else inspect.Parameter.empty for f in groups.values()
    }
    parameters.update({n: None if n[:4] == "max_" else d.default for n, d in options.items()})
    parameters.update(defaults)
    by_default = sorted(parameters.items(), key=lambda one: one[1] is not inspect.Parameter.empty)
    parameters = dict(by_default)
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature(
        [inspect.Parameter(n, keyword, default=d) for n, d in parameters.items()]
    )
    kinds = {field.name: str(field.type) for field in dataclasses.fields(GradientPhase)}
    kinds.update({f.parameter: "AnyOptimizer" for f in groups.values()})
    kinds.update({name: _kind(declared) for name, declared in options.items()})
    typed = [
        p.replace(annotation=kinds[p.name] + (" | None" if p.default is None else ""))
        for p in signature.parameters.values()
    ]
    phase_fields = [name for name in defaults if name not in options]

    def make(**arguments: Any) -> Algorithm:
        arguments = former.present_arguments(arguments, parameters)
        for name in arguments:
            if name not in parameters:
                nearest = did_you_mean(name, parameters)
                raise TypeError(f"{method.same_rounds_as} has no argument {name!r}{nearest}")
        try:
            bound = signature.bind(**arguments)
        except TypeError as error:
            raise TypeError(f"{method.same_rounds_as}: {error}; it takes {signature}.") from None
        bound.apply_defaults()
        values = bound.arguments
        idle = sorted({*RebuildingOptions.declarations()} & {*arguments})
        is_built = values.get("reconstruction_optimizer") or values.get("reconstruction") == "ridge"
        if idle and method.local_variables == "kept" and not is_built:
            raise TypeError(
                f"{method.same_rounds_as}: {idle[0]} has no effect without a "
                "reconstruction_optimizer."
            )
        for name, declared in options.items():
            if declared.rule.choices:
                check_choice(method.same_rounds_as, name, values[name], declared.rule.choices)
        optimizers = {prefix: values[group.parameter] for prefix, group in groups.items()}
        fields = {name: values[name] for name in phase_fields if values[name] is not None}
        return method(_Arguments(values, optimizers), extra_fields=fields).algorithm()

    make.__name__ = make.__qualname__ = method.same_rounds_as
    make.__module__ = method.__module__
    make.__doc__ = _docstring(method, groups, options)
    make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        typed, return_annotation="Algorithm"
    )
    return make


class _Arguments(types.SimpleNamespace):
    """The arguments of a program, with the interface of a run's options."""

    def __init__(self, values: Mapping[str, Any], optimizers: Mapping[str, Any]):
        super().__init__(**{"local_steps": 0, "local_state": "kept", **values})
        self._optimizers = optimizers

    def build(self, prefix: str) -> Any:
        """Returns the optimizer that the program passed, or None."""
        return self._optimizers.get(prefix)


def _groups(method: type[Method]) -> dict[str, OptimizerGroup]:
    """Returns the optimizers of a round by the prefixes of their options."""
    groups = {p: f for p, f in method.options.groups().items() if p != "finetuning"}
    if method.local_variables == "none":
        groups.pop("reconstruction", None)
    return {p: f for p, f in groups.items() if isinstance(f, OptimizerGroup)}


def _options(method: type[Method], without: Collection[str]) -> dict[str, Declaration]:
    """Returns the options of a round, except those of optimizers."""
    idle = {*_OF_RUNS, *without, *FinetuningOptions.declarations()}
    if method.local_variables == "none":
        idle.update(RebuildingOptions.declarations())
    for group in method.options.groups().values():
        idle.update(group.members)
    return {n: d for n, d in method.options.declarations().items() if n not in idle}


def _kind(declared: Declaration) -> str:
    """Returns the type of an option as an annotation, without None."""
    if declared.rule.choices:
        return f"Literal[{', '.join(map(repr, declared.rule.choices))}]"
    return declared.kind.__name__


def _docstring(
    method: type[Method],
    groups: Mapping[str, OptimizerGroup],
    options: Mapping[str, Declaration],
) -> str:
    when = "in a round" if method.trains else "before it predicts"
    lines = [f"Returns the phases of a {method.title} client {when}.", "", "Args:"]
    for group in groups.values():
        end = "; None to fall back to another one" if group.is_optional else ""
        lines.append(f"    {group.parameter}: An optimizer of TFF or Keras{end}.")
    lines += [f"    {name}: {declared.rule.help}" for name, declared in options.items()]
    return "\n".join(lines)

"""Finds idle options: those without an effect on a run.

The work of a run is described twice, with the run's options and with another value of one option.
The option is idle if neither the method nor the task reads it, or if the work is the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedpersonal.errors import UserError
from fedpersonal.methods.method import FinetuningOptions, Layers, Method, SplitOptions
from fedpersonal.methods.phases import GradientPhase
from fedpersonal.optimizers import SERVER_ARGUMENTS, OptimizerGroup
from fedpersonal.options import Declaration, Options, Value
from fedpersonal.suite.tasks.options import RunOptions

if TYPE_CHECKING:
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.suite.tasks.task import Source, Task

# Options of a run with rounds, besides those of its method.
_ROUND_OPTIONS = (
    *("total_rounds", "clients_per_round", "client_sampling", "packing"),
    *("rounds_per_eval", "rounds_per_checkpoint"),
    *("server_optimizer", "server_learning_rate", "decay_rounds"),
    *("server_epsilon", "server_initial_accumulator"),
)
# Enough clients that each option of a server's batches has an effect.
_MANY_CLIENTS = 10**6


def check_declared(task: Task, options: Any, typed: Collection[str]) -> list[str]:
    """Refuses options of other methods; reads no data.

    Args:
        task: The task.
        options: The options of a run.
        typed: The names of the options that the user has typed.

    Returns:
        A warning for each idle option of fine-tuning.

    Raises:
        UserError: If a typed option is neither the method's nor that of any run, or as
            `check_rounds`.
    """
    check_rounds(task, options)
    method = task.method(options)
    declared = {*method.options.declarations(), *RunOptions.declarations()}
    foreign = {n for n in _method_options(task) if n not in declared}
    _, read = _work(task, _probe(task, options), _planned_facts(task, options))
    for name in options.values():
        if name in typed and name in foreign - read:
            raise _refusal(task, options, name)
    idle = _idle_finetuning(task, options)
    return [_warning(task, options, name) for name in options.values() if name in {*typed} & idle]


def check_rounds(task: Task, options: Any) -> None:
    """Raises a UserError if options need rounds, or federated rounds, that the run has not."""
    method = task.method(options)
    if options.watches and not method.trains:
        raise UserError(
            f"--method={options.method} has no rounds to choose from: leave out --best and "
            "--early_stopping."
        )
    if method.is_federated and method.trains:
        return
    if options.is_private:
        raise UserError(
            f"--method={options.method} sends no clients' updates that differential privacy "
            "could protect; leave out --dp_..."
        )
    if options.participation:
        raise UserError(
            f"--method={options.method} has no rounds that clients could drop out of; leave out "
            "options of participation."
        )


def check_effects(experiment: Experiment, source: Source, typed: Collection[str]) -> None:
    """Refuses options without an effect on an experiment.

    Options of fine-tuning for which `check_declared` returns a warning are not refused.

    Args:
        experiment: The experiment.
        source: The experiment's data, as read.
        typed: The names of the options that the user has typed.

    Raises:
        UserError: If a typed option has no effect.
    """
    task, options = experiment.task, experiment.options
    typed = {*typed} - _idle_finetuning(task, options)
    has_kept = experiment.has_kept(experiment.data.test)
    model = experiment.evaluator.model
    facts = _ModelFacts(experiment.layers, bool(model.base.local_variables), model, has_kept)
    idle = _idle(task, options, typed, facts)
    if not idle:
        return
    read = _read_by_task(experiment, source)
    for name in idle:
        if name not in read:
            raise _refusal(task, options, name, facts)


def idle_options(task: Task, options: RunOptions, among: Collection[str] | None = None) -> set[str]:
    """Returns the options of methods and servers that the method of a run does not read.

    Options of the split of a client's batches are left out, because tasks read them, too.

    Args:
        task: The task.
        options: The options of the run.
        among: Names of options; None for all.
    """
    names = {*(options.declarations() if among is None else among)}
    names -= SplitOptions.declarations().keys()
    idle = {*_idle(task, options, names, _planned_facts(task, options))}
    return idle | (_idle_finetuning(task, options) if task.is_finetuning_idle(options) else set())


@dataclasses.dataclass(frozen=True)
class _ModelFacts:
    """Facts about a model and its test clients.

    Attributes:
        layers: The layers, by role.
        has_local: Whether the evaluated model has local variables.
        model: The evaluated model; None before it is built.
        has_kept: Whether test clients have kept local variables, if the algorithm keeps any.
    """

    layers: Layers
    has_local: bool
    model: Any = None
    has_kept: bool = True


def _planned_facts(task: Task, options: RunOptions) -> _ModelFacts:
    """Returns the facts about a model before it is built."""
    names = {name: None for layers in vars(task.layers).values() for name in layers}
    layers = dataclasses.replace(task.layers, everything=tuple(names))
    return _ModelFacts(layers, bool(task.evaluated_local_layers(options)))


def _method_options(task: Task) -> set[str]:
    """Returns the options of a task's methods that the task itself does not declare."""
    names = {n for method in task.methods.values() for n in method.options.declarations()}
    return names - {*task.extra_options.declarations()}


def _has_twin(task: Task, method: type[Method]) -> bool:
    """Returns whether the task has the same method with fine-tuning."""
    return f"{method.name}_finetuning" in task.methods


def _idle_finetuning(task: Task, options: RunOptions) -> set[str]:
    """Returns the options of fine-tuning if they are idle but no mistake of the user.

    Users compare a method and its twin with fine-tuning by runs with the same flags.
    """
    method = task.method(options)
    declared = {*FinetuningOptions.declarations()}
    if task.is_finetuning_idle(options):
        return declared
    is_read = bool(declared & {*method.options.declarations()})
    return declared if _has_twin(task, method) and not is_read else set()


def _idle(task: Task, options: RunOptions, names: Collection[str], facts: _ModelFacts) -> list[str]:
    """Returns those of the named options that do not change the work of clients and server."""
    candidates = {*_method_options(task), *_ROUND_OPTIONS, *_central_options(task, options)}
    candidates &= {*names}
    work, read = _work(task, _probe(task, options), facts)

    def is_idle(name: str) -> bool:
        if name not in read:
            return True
        changed = False
        for other in _other_values(options.declarations()[name], getattr(options, name)):
            try:
                probe = _probe(task, options.replace(**{name: other}))
                if _work(task, probe, facts)[0] != work:
                    return False
                changed = True
            except (UserError, ValueError):  # The value contradicts another option: an effect.
                continue
        return changed

    return [name for name in options.values() if name in candidates and is_idle(name)]


def _work(task: Task, options: Any, facts: _ModelFacts) -> tuple[list[Any], set[str]]:
    """Returns a description of the work of clients and server, and the names of options read.

    Args:
        task: The task.
        options: The options, a probe.
        facts: Facts about the model.
    """
    method, model = task.method(options), facts.model
    options._read.clear()
    algorithm = method.build(options, facts.layers)
    if not algorithm.trains:  # The phases run outside of rounds.
        options._read.clear()
        method(options, facts.layers).rebuilding()  # Clients rebuild before they predict.
    work: list[Any] = [method.local_layers(options, task.layers)]
    work.append(method.finetuning(options, facts.layers))
    if model is not None:
        work.append(algorithm.personalization(model))
    else:
        rebuilding = algorithm.rebuilding
        work.append(rebuilding if facts.has_local else None)
        steps = [phase for phase in algorithm.phases if isinstance(phase, GradientPhase)]
        if algorithm.personal and rebuilding:
            work += [rebuilding.copy_rebuilding_phase(phase, "personal") for phase in steps]
    algorithm = dataclasses.replace(algorithm, rebuilding=None)
    if algorithm.keeps and facts.has_kept:
        work.append(getattr(options, "local_start", "kept"))
    if not method.trains:
        return work, options._read
    if not method.is_federated:  # The weight of a single client has no effect.
        work.append(task.central_batching(options, _MANY_CLIENTS))
        algorithm = dataclasses.replace(algorithm, weighting="uniform")
    else:
        work += [options.clients_per_round, options.client_sampling, options.shuffle]
    if not algorithm.keeps:
        algorithm = dataclasses.replace(algorithm, max_local_update_norm=None)
    work += [algorithm, *_server(options)]
    work += [options.total_rounds, options.packing]
    work += [options.rounds_per_eval, options.rounds_per_checkpoint]
    return work, options._read


def _server(options: Any) -> Iterator[Value]:
    yield options.server_optimizer
    yield options.server_learning_rate
    yield options.decay_rounds
    for name in SERVER_ARGUMENTS.get(options.server_optimizer, ()):
        yield getattr(options, f"server_{name}")


def _central_options(task: Task, options: RunOptions) -> set[str]:
    """Returns the task's options for the batches of a server with all data."""
    probe = _probe(task, options)
    task.central_batching(probe, _MANY_CLIENTS)
    return probe._read & {*task.extra_options.declarations()}


def _read_by_task(experiment: Experiment, source: Source) -> set[str]:
    """Returns the options that a task reads to split the data and to build the model."""
    task, sizes = experiment.task, SimpleNamespace(**experiment.task.sizes(experiment.data))
    probe = _probe(task, experiment.options.for_split)
    data = task.split(source, probe)
    names = experiment.method.local_layers(experiment.options, task.layers)
    model = task.build_model(sizes, probe, names)
    task.evaluated_model(sizes, probe, model)
    task.training_clients(model, data.train, probe)
    return probe._read


def _other_values(declared: Declaration, value: Value) -> Iterator[Value]:
    """Yields other values of an option, including its default."""
    if declared.rule.choices:
        candidates: list[Value] = [*declared.rule.choices]
    elif declared.kind is bool:
        candidates = [True, False]
    elif declared.kind is str:
        candidates = ["another"]
    else:
        number: Any = value[0] if isinstance(value, tuple) and value else value
        number = number if isinstance(number, (int, float)) else 1
        candidates = [declared.kind(number + step) for step in (1, 7, -1)] + [number / 2]
    for other in [declared.default, *candidates]:
        if declared.is_list and not isinstance(other, tuple):
            other = (other,)
        if other != value:
            yield other


def _probe(task: Task, options: RunOptions) -> Any:
    """Returns options with defaults that record reads, and describe optimizers without building.

    The attribute `_read` has the names of the options that were read.
    """
    kind = _probe_class(_original_class(type(options)))
    probe = task.with_defaults(kind(**options.values()))
    object.__setattr__(probe, "_read", set())
    return probe


def _original_class(cls: Any) -> Any:
    return cls.__bases__[0] if cls.__dict__.get("is_probe") else cls


class _Description(tuple):
    """The settings of an optimizer in place of the optimizer, for phases that never run."""

    def initialize(self, specs: Any) -> Any:
        """Raises an AssertionError."""
        raise AssertionError("a description of an optimizer has no steps")

    next = initialize


@functools.lru_cache(maxsize=16)
def _probe_class(cls: type[Options]) -> type[Options]:
    declared = {*cls.declarations()}

    def read(self: Any, name: str) -> Any:
        if name in declared:
            object.__getattribute__(self, "__dict__").get("_read", set()).add(name)
        return object.__getattribute__(self, name)

    def build(self: Any, prefix: str, **changes: Any) -> Any:
        family = cls.groups()[prefix]
        if isinstance(family, OptimizerGroup):
            described = family.describe(self, **changes)
            return None if described is None else _Description(described)
        return tuple(getattr(self, name) for name in family.members)

    body = {"__getattribute__": read, "build": build, "is_probe": True}
    return type(cls.__name__, (cls,), {**body, "__module__": __name__})


def _refusal(
    task: Task, options: RunOptions, name: str, facts: _ModelFacts | None = None
) -> UserError:
    cause = facts and _cause(task, options, name, facts)
    where = f"with --method={options.method}{f' and {cause}' if cause else ''}"
    return options.idle_error(name, where=where)


def _cause(task: Task, options: RunOptions, name: str, facts: _ModelFacts) -> str:
    """Returns the flag of another option that makes an option idle; empty if there is none."""
    for other, declared in options.declarations().items():
        if other in ("method", name) or getattr(options, other) == declared.default:
            continue
        try:
            without = task.with_defaults(options.replace(**{other: declared.default}))
            if not _idle(task, without, [name], facts):
                return " ".join(declared.flags(getattr(options, other)))
        except (UserError, ValueError):
            continue
    return ""


def _warning(task: Task, options: RunOptions, name: str) -> str:
    method = task.method(options)
    value = " ".join(options.declarations()[name].flags(getattr(options, name)))
    why = f"{method.name} does not fine-tune; {method.name}_finetuning does"
    if task.is_finetuning_idle(options):
        why = f"{method.name} fine-tunes values that no prediction of the same client reads"
    return f"{value} has no effect: {why}"

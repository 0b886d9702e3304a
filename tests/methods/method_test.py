"""Methods that are declared once: what flags and programs build, and mistakes in a declaration."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import fedpersonal as fp
from fedpersonal.methods import method as method_module
from fedpersonal.methods.method import methods
from fedpersonal.optimizers import OptimizerGroup
from fedpersonal.runs.description import describe
from fedpersonal.suite.tasks.digits.task import DigitTask
from fedpersonal.tff.optimizers import build_sgdm

SGD = build_sgdm
PROGRAMS = sorted(name for name in methods() if hasattr(fp, name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_builds_what_flags_do(name):
    """Given the same optimizers, and what flags have other defaults for."""
    method, make = methods()[name], getattr(fp, name)
    parameters = inspect.signature(make).parameters
    options = method.options()
    given = {
        family.parameter: options.build(prefix)
        for prefix, family in method.options.groups().items()
        if isinstance(family, OptimizerGroup) and family.parameter in parameters
    }
    others = {"max_local_update_norm": 10.0, "reconstruction_epochs": 5}
    if not method.trains:
        others["local_epochs"] = options.local_epochs
    given.update({n: v for n, v in others.items() if n in parameters})
    assert describe(make(**given)) == describe(method.build(options, fp.Layers()))
    for parameter in parameters.values():
        assert parameter.kind is parameter.KEYWORD_ONLY
        if parameter.name in method.options.declarations() and parameter.name not in given:
            assert f"    {parameter.name}: " in make.__doc__


class Mine(
    fp.Method, name="mine", title="Mine", extra_options=fp.KeepingOptions, local_variables="kept"
):
    """What a client of mine does."""

    rank: int = fp.option(4, "Its rank.", at_least=1)
    outer = fp.optimizer("mine", 0.25, "SGD rate of mine.")

    def phases(self):
        """Returns one phase."""
        return (self.phase(optimizer=self.optimizer("mine"), epochs=self.rank),)


@pytest.fixture(name="mine")
def _mine():
    return fp.constructor(Mine)


def test_options_of_a_class_are_flags_and_arguments(mine, monkeypatch):
    monkeypatch.setattr(method_module, "_registered", {})
    assert fp.register(Mine) is Mine and methods()["mine"] is Mine
    declared = Mine.options.declarations()
    assert (declared["rank"].default, declared["mine_learning_rate"].default) == (4, 0.25)
    assert declared["rank"].help_section == "What a client of mine does."
    assert not hasattr(Mine, "outer")
    built = Mine.build(Mine.options(rank=2, mine_learning_rate=0.5, local_state="rebuilt"), None)
    assert (built.name, built.local_variables) == ("mine_stateless", "rebuilt")
    assert built.last_phase.epochs == 2
    assert describe(built.last_phase.optimizer) == describe(SGD(0.5))
    program = mine(client_optimizer=SGD(1.0), mine_optimizer=SGD(0.5), rank=3)
    assert (program.name, program.local_variables, program.last_phase.epochs) == ("mine", "kept", 3)
    again = Mine.variant("again", "Again", local_part="head")
    assert again.options is Mine.options and (again.same_rounds_as, again.title) == (
        "again",
        "Again",
    )


@dataclasses.dataclass(frozen=True)
class ScaledLayers(fp.Layers):
    """Layers with a further part."""

    scale: tuple[str, ...] = ()


class ScaledDigits(DigitTask):
    """Digits whose layers have a further part; one of its layers is not built."""

    name = "scaled_digits"
    layers = ScaledLayers(head=("head",), body=("hidden",), scale=("hidden", "absent"))


@pytest.mark.parametrize("fact", ["local_part", "finetunes"])
def test_a_part_of_a_subclass_of_layers_is_one_as_the_others_are(fact, monkeypatch):
    monkeypatch.setattr(method_module, "_registered", {})
    facts = {"local_variables": "kept"} if fact == "local_part" else {}

    @fp.register
    class Scaled(fp.Method, name="scaled", **{**facts, fact: "scale"}):
        """Names a part that no task of the library has."""

    assert "scaled" not in DigitTask().methods
    task = ScaledDigits()
    options = task.options(method="scaled", reconstruction_epochs=3, hidden_dim=2)
    local = task.evaluated_local_layers(options)
    assert local == (("hidden", "absent") if fact == "local_part" else ())
    if fact == "local_part":
        # Layers that a model may lack have no place among those that are local in it.
        task.layers = dataclasses.replace(task.layers, scale=("hidden",))
    built = task.build({"shape": [2, 2], "num_labels": 10, "num_users": 3}, options)
    assert built.layers.scale == ("hidden",)
    moved = {"local_part": built.model.local_variables, "finetunes": ()}[fact]
    for phase in built.evaluator.finetuning:
        assert (phase.variables, phase.epochs) == (("hidden",), 3)
        moved = [v for v in built.evaluator.model.variables if phase.moves(v)]
    assert [variable.name for variable in moved] == ["hidden/kernel", "hidden/bias"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: type("A", (fp.Method,), {}, name="a", titel="A"), "A: a method has no 'titel'"),
        (lambda: type("A", (Mine,), {}, defaults={"ranks": 2}), "AOptions: 'ranks' is no inherit"),
        (lambda: fp.register(fp.Method), "Method.* is no subclass of Method with a name"),
        (lambda: fp.register("mine"), "'mine' is no subclass of Method"),
        (lambda: fp.ditto(pull=2.0), "ditto: missing a required.*'client_optimizer'; it takes"),
        (
            lambda: fp.ditto(client_optimizer=SGD(0.1), pul=2.0),
            "ditto has no argument 'pul'; did you mean pull?",
        ),
        (lambda: fp.ditto(SGD(0.1)), "positional"),
        (lambda: Mine(Mine.options()).phase(epoch=2), "no field 'epoch'; did you mean epochs?"),
        (
            lambda: Mine(Mine.options()).optimizer("min"),
            "has no option group 'min'; did",
        ),
    ],
)
def test_mistakes_in_a_declaration_are_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()

"""Options that are declared once: what they take, what they refuse, how they are inherited."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.options import Options, join, option
from fedpersonal.suite.tasks.find import all_tasks


class Plain(Options):
    """What a test wants."""

    flag: bool = option(False, "A switch.")
    count: int = option(3, "How many.", at_least=1)
    index: int = option(0, "Any whole number.")
    share: float = option(0.5, "A share.", at_least=-1, at_most=1)
    rate: float = option(0.1, "A rate.", above=0)
    offset: float = option(0.0, "Any number.")
    name: str = option("x", "A name.")
    kind: str = option("a", "A kind.", choices=("a", "b"))
    path: str | None = option(None, "A path.")
    most: int | None = option(None, "At most.", at_least=2, may_differ=True)
    sizes: tuple[int, ...] = option((4,), "Sizes.", at_least=0, at_most=9)
    layers: tuple[str, ...] = option((), "Layers.")


_TAKEN = [
    ("flag", True, True),
    ("count", 1, 1),
    ("count", np.int64(7), 7),
    ("count", 10**9, 10**9),
    ("index", -(10**9), -(10**9)),
    ("share", -1, -1.0),
    ("share", 1, 1.0),
    ("rate", np.float32(0.5), 0.5),
    ("rate", 1e-30, 1e-30),
    ("offset", -3.5, -3.5),
    ("kind", "b", "b"),
    ("path", None, None),
    ("path", "", ""),
    ("most", None, None),
    ("most", 2, 2),
    ("sizes", [1, 2], (1, 2)),
    ("sizes", (), ()),
    ("layers", ["a"], ("a",)),
]


@pytest.mark.parametrize(("name", "given", "value"), _TAKEN)
def test_a_value_gets_the_type_of_its_option(name, given, value):
    found = getattr(Plain(**{name: given}), name)
    assert found == value and type(found) is type(value)


_REFUSED = [
    ("flag", 1, "--flag is 1; it must be true or false."),
    ("flag", None, "--flag is None; it must be true or false."),
    ("count", 0, "--count is 0; it must be a whole number at least 1 and at most 1,000,000,000."),
    ("count", 10**9 + 1, "at most 1,000,000,000."),
    ("count", 10**400, "--count is 1000000000"),
    ("count", 2.0, "--count is 2.0; it must be a whole number"),
    ("count", True, "--count is True; it must be a whole number"),
    ("count", "2", "--count is 2; it must be a whole number"),
    ("count", math.nan, "--count is nan"),
    ("index", -(10**9) - 1, "--index is -1000000001"),
    ("share", 1.01, "--share is 1.01; it must be a finite number at least -1 and at most 1."),
    ("share", -1.01, "--share is -1.01"),
    ("share", math.nan, "--share is nan; it must be a finite number"),
    ("rate", 0.0, "--rate is 0.0; it must be a finite number above 0 and at most 1,000,000,000."),
    ("rate", math.inf, "--rate is inf"),
    ("rate", 10**400, "--rate is 1000000000"),
    ("rate", False, "--rate is False"),
    ("offset", -math.inf, "--offset is -inf"),
    ("offset", math.nan, "--offset is nan"),
    ("offset", None, "--offset is None"),
    ("name", 3, "--name is 3; it must be a text."),
    ("name", None, "--name is None"),
    ("kind", "c", "--kind is c; it must be one of a, b."),
    ("most", 1, "--most is 1; it must be a whole number at least 2"),
    ("sizes", (1, 10), "--sizes is 1,10; each must be a whole number at least 0 and at most 9."),
    ("sizes", 3, "--sizes is 3"),
    ("sizes", "12", "--sizes is 12"),
    ("sizes", (1.5,), "--sizes is 1.5"),
    ("layers", "abc", "--layers is abc; each must be a text."),
    ("layers", (1,), "--layers is 1"),
]


@pytest.mark.parametrize(("name", "given", "message"), _REFUSED)
def test_a_value_of_another_type_or_range_is_refused(name, given, message):
    with pytest.raises(UserError) as caught:
        Plain(**{name: given})
    assert message in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UserError):
        Plain().replace(**{name: given})


def test_options_know_themselves():
    options = Plain(count=5)
    assert options.values()["count"] == 5 and list(options.values()) == list(Plain.declarations())
    assert options == Plain(count=5) != options.replace(count=6)
    assert hash(options) == hash(Plain(count=5))
    for name, declaration in Plain.declarations().items():
        assert f"    {name}: {declaration.rule.help}" in Plain.__doc__.splitlines()
    assert {n for n, d in Plain.declarations().items() if d.rule.may_differ} == {"most"}
    with pytest.raises(AttributeError):
        options.count = 7
    with pytest.raises(TypeError, match="contu"):
        Plain(contu=7)


class Shared(Options):
    """Shared."""

    rounds: int = option(10, "Rounds.", at_least=1)
    decay: int = option(0, "Decay.", at_least=0)

    def check(self):
        """Refuses decay after the last round."""
        if self.decay > self.rounds:
            raise UserError("--decay is after --rounds.")


class Left(Shared, defaults={"rounds": 20}):
    """Left."""

    left: str = option("l", "Left.")


class Right(Shared, defaults={"rounds": 30}):
    """Right."""

    right: str = option("r", "Right.")


def test_other_defaults_are_inherited():
    class Lower(Left, defaults={"left": "ll"}):
        """Lower."""

    assert (Shared().rounds, Left().rounds, Lower().rounds, Lower().left) == (10, 20, 20, "ll")
    assert list(Lower.declarations()) == ["rounds", "decay", "left"]
    with pytest.raises(UserError, match="--decay is after --rounds"):
        Lower(decay=21)
    with pytest.raises(UserError, match="--decay is after --rounds"):
        Lower(decay=20).replace(rounds=19)
    with pytest.raises(TypeError, match="Bad: 'wrongs' is no inherited option"):
        type("Bad", (Left,), {}, defaults={"wrongs": 1})
    with pytest.raises(UserError, match="--rounds is 0"):
        type("Bad", (Left,), {}, defaults={"rounds": 0})


def test_joined_classes_share_their_options():
    both = join("Both", Left, Right, Shared)
    assert set(both.declarations()) == {"rounds", "decay", "left", "right"}
    assert both().rounds == 20 and join("Other", Right, Left)().rounds == 30
    assert issubclass(both, Left) and issubclass(both, Right)
    with pytest.raises(UserError, match="--decay is after --rounds"):
        both(decay=21)


def test_an_option_keeps_its_group_and_its_place_in_help_when_declared_anew():
    class First(Options):
        """The first group."""

        data: str = option("auto", "Data.", in_help=True)
        rate: float = option(0.1, "Rate.")

    class Second(First, defaults={"rate": 0.2}):
        """The second group.

        It has a paragraph more.
        """

        data: str = option("all", "All data.", choices=("all", "none"))
        own: int = option(1, "Its own.")

    found = Second.declarations()
    assert [(n, d.help_section, d.rule.in_help) for n, d in found.items()] == [
        ("data", "The first group.", True),
        ("rate", "The first group.", False),
        ("own", "The second group.", False),
    ]
    assert found["data"].rule.choices == ("all", "none") and found["rate"].default == 0.2


TASKS = list(all_tasks().values())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_option_of_a_task_explains_itself(task):
    declarations = task.options.declarations()
    assert set(task.extra_options.declarations()) < set(declarations)
    for name, declaration in declarations.items():
        rule = declaration.rule
        assert rule.help[0].isupper() or rule.help.split(":")[0].split(",")[0].islower(), name
        assert rule.help.endswith((".", "]")) and len(rule.help) < 250, name
        assert declaration.check(declaration.default) == declaration.default, name
        if declaration.kind in (int, float):
            assert rule.range(declaration.kind), name
        if not declaration.is_optional and not declaration.is_list:
            assert type(declaration.default) is declaration.kind, name
    # A task is configured by the options' names: an example of each kind of them.
    assert {"method", "total_rounds", "server_optimizer", "ridge_l2", "seed"} < set(declarations)
    assert task.options().method in task.methods
    with pytest.raises(UserError, match="--decay_rounds=6 must be 0 or at least --total_rounds=7"):
        task.options(total_rounds=7, decay_rounds=6)
    assert task.options(total_rounds=7, decay_rounds=7).decay_rounds == 7


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_option_of_a_task_has_bounds(task):
    """Nothing that is not a number, infinite or absurdly large gets past an option."""
    for name, declaration in task.options.declarations().items():
        if declaration.kind not in (int, float):
            continue
        for value in (math.nan, math.inf, -math.inf, 10**12, -(10**12)):
            with pytest.raises(UserError, match=f"^--{name} is "):
                task.options(**{name: [value] if declaration.is_list else value})


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_methods_settle_what_is_left_to_them(task):
    for name, method in task.methods.items():
        needed = {"user_vectors": "vectors.csv"} if name == "fedperc_projected" else {}
        options = task.with_defaults(task.options(method=name, **needed))
        usual = method.server_optimizer or task.usual_server_optimizer
        assert options.server_optimizer == usual
        rate = {"reptile": 0.5}.get(name, 1.0 if usual == "sgd" else 0.1)
        assert options.server_learning_rate == rate
        assert task.with_defaults(options) == options
    asked = {"server_optimizer": "adagrad", "server_learning_rate": 0.5}
    assert task.with_defaults(task.options(**asked)).server_learning_rate == 0.5
    assert task.with_defaults(task.options(server_optimizer="sgd")).server_learning_rate == 1.0


@pytest.mark.parametrize(
    ("task", "given", "said"),
    [
        ("movielens", {"local_steps": 4, "local_epochs": 2}, "local_epochs is 2"),
        ("movielens", {"local_steps": 4, "max_local_steps": 9}, "max_local_steps is 9"),
        ("tv_shows", {"local_epochs": 2}, "local_epochs is 2"),
        ("movielens", {"dp_clip_norm": 0.3}, "dp_clip_norm is 0.3"),
    ],
    ids=str,
)
def test_an_option_that_has_no_effect_is_refused(task, given, said):
    with pytest.raises(UserError, match=f"--{said}, which has no effect.* leave it out"):
        all_tasks()[task].options(**given)

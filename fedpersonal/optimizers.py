"""Optimizers by name, and the options that describe them.

TensorFlow is imported when one is built.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np

from fedpersonal.errors import UserError, check_choice
from fedpersonal.options import Family, option

if TYPE_CHECKING:
    import tensorflow as tf

    Values = Mapping[str, tf.Tensor]
    Specs = Mapping[str, tf.TensorSpec]
    State = Mapping[str, Any]


class Optimizer(Protocol):
    """What takes steps: one of TFF's optimizers, or anything with these two functions."""

    def initialize(self, specs: Specs) -> State:
        """Returns the state before the first step, of values of these shapes, by name."""

    def next(self, state: State, weights: Values, gradients: Values) -> tuple[State, Values]:
        """Returns the next state, and the values after a step."""


AnyOptimizer = Union[Optimizer, "tf.keras.optimizers.Optimizer"]


def as_tff_optimizer(optimizer: AnyOptimizer) -> Optimizer:
    """Returns an optimizer as it is, or of a Keras one its counterpart.

    SGD (with momentum), Adam, AdamW and Adagrad have one that takes the same steps, but for
    rounding. Equal options give the same counterpart. A Keras optimizer holds its rate in a
    variable, which no graph can read: whatever is given one converts it when it is made, and later
    changes of the variable have no effect.

    Raises:
        UserError: If there is none, or an option is set that it does not have.
    """
    if hasattr(optimizer, "initialize") and hasattr(optimizer, "next"):
        return optimizer
    import tensorflow as tf

    legacy = tf.keras.optimizers.legacy.Optimizer
    if isinstance(optimizer, (tf.keras.optimizers.Optimizer, legacy)):
        return _counterpart(optimizer)
    raise UserError(
        f"{optimizer!r} is no optimizer: give one of tf.keras.optimizers, such as SGD(0.1), or "
        "of tff.learning.optimizers."
    )


def convert_optimizers(owner: Any, *names: str) -> None:
    """Replaces optimizers among the fields of a frozen dataclass by what `as_tff_optimizer` gives.

    Args:
        owner: The object.
        *names: Fields, each an optimizer or a mapping of names to optimizers.

    Raises:
        UserError: As of `as_tff_optimizer`.
    """
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, Mapping):
            converted: Any = {key: as_tff_optimizer(one) for key, one in value.items()}
        else:
            converted = as_tff_optimizer(value)
        object.__setattr__(owner, name, converted)


def _counterpart(optimizer: tf.keras.optimizers.Optimizer) -> Optimizer:
    kind, options = type(optimizer).__name__, optimizer.get_config()
    if type(optimizer).__module__.split(".")[0] not in ("keras", "tf_keras"):
        raise UserError(
            f"{kind} is an optimizer of your own: its Keras code is not run here. Give SGD, Adam, "
            "AdamW or Adagrad of tf.keras.optimizers, or one of tff.learning.optimizers."
        )
    if kind not in _BUILDERS:
        raise UserError(
            f"Keras optimizer {kind} has no counterpart that takes the same steps. Give SGD, Adam, "
            "AdamW, Adagrad, or one of tff.learning.optimizers."
        )
    _check_legacy(optimizer, options)
    rate = options.pop("learning_rate")
    if isinstance(rate, dict) or callable(getattr(optimizer, "_hyper", {}).get("learning_rate")):
        raise UserError(
            f"Keras optimizer {kind}: a learning rate that changes counts steps, and clients start "
            "anew in each round. Give fedpersonal.optimizers.ScheduledOptimizer."
        )
    taken = {key: options.pop(key) for key in ("beta_1", "beta_2", "epsilon") if key in options}
    if kind == "SGD":
        taken["momentum"] = float(options.pop("momentum")) or None
    elif kind == "AdamW":
        taken["weight_decay"] = options.pop("weight_decay") or 0.0
    elif kind == "Adagrad":
        taken["initial_preconditioner_value"] = options.pop("initial_accumulator_value")
    harmless = ("name", "jit_compile", "is_legacy_optimizer", "ema_momentum")
    used = {key: value for key, value in options.items() if value and key not in harmless}
    if not options.get("use_ema"):
        used.pop("ema_overwrite_frequency", None)
    excluded = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_names")
    if any(getattr(optimizer, name, None) for name in excluded):
        used["exclude_from_weight_decay"] = "..."
    if used:
        listed = ", ".join(f"{key}={value}" for key, value in used.items())
        raise UserError(f"Keras optimizer {kind}: {listed} has no counterpart here; leave it out.")
    # Keras holds 0.2 in float32, and returns 0.20000000298; descriptions show the former.
    return _built(kind, learning_rate=float(str(np.float32(rate))), **taken)


def _check_legacy(optimizer: Any, options: Mapping[str, Any]) -> None:
    """Raises a UserError if Keras' former optimizer takes other steps than the one of its name."""
    import tensorflow as tf

    if not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        return
    kind = type(optimizer).__name__
    others = {
        "momentum": "its momentum moves those rows of an embedding alone that a batch has",
        "epsilon": "its epsilon is added to the root of the accumulator, not within it",
    }
    name = {"SGD": "momentum", "Adagrad": "epsilon"}.get(kind, "")
    if options.get(name, 0.0) > 1e-6:
        raise UserError(
            f"Keras' legacy {kind} with {name}={options[name]} has no counterpart here: "
            f"{others[name]}. Give tf.keras.optimizers.{kind}."
        )


_BUILDERS = {
    "SGD": "build_sgdm", "Adam": "build_adam", "AdamW": "build_adamw", "Adagrad": "build_adagrad"
}  # fmt: skip


# Phases of equal optimizers are equal, and share what is traced.
@functools.lru_cache(maxsize=256)
def _built(kind: str, **options: Any) -> Optimizer:
    from fedpersonal.tff import optimizers

    return getattr(optimizers, _BUILDERS[kind])(**options)


class ConstrainedServer:
    """A server's optimizer that applies constraints to variables after each step that moves them.

    A round without clients leaves initial values alone that break a constraint, as Keras does.

    Attributes:
        optimizer: What steps the variables.
        constraints: Variable's name to what maps its value to the one that it may have.
    """

    def __init__(self, optimizer: Optimizer, constraints: Mapping[str, Callable[[Any], Any]]):
        self.optimizer, self.constraints = optimizer, constraints

    def initialize(self, specs: Specs) -> State:
        """Returns the state before the first step, of values of these shapes, by name."""
        return self.optimizer.initialize(specs)

    def next(self, state: State, weights: Values, gradients: Values) -> tuple[State, Values]:
        """Returns the next state, and the values after a step."""
        import tensorflow as tf

        state, moved = self.optimizer.next(state, weights, gradients)
        constrained = collections.OrderedDict(moved)
        for name, constraint in self.constraints.items():
            is_moved = tf.reduce_any(moved[name] != weights[name])
            constrained[name] = tf.where(is_moved, constraint(moved[name]), moved[name])
        return state, constrained


# Options describe a schedule before anything slow is imported.


@dataclasses.dataclass(frozen=True)
class LinearDecay:
    """Learning rates that fall in a straight line, from the first round to the last.

    Attributes:
        total_rounds: Rounds until they reach `end`; from there on they stay.
        end: Their share at the end, in [0, 1].
    """

    total_rounds: int
    end: float = 0.0

    def __post_init__(self):
        if self.total_rounds < 1:
            raise ValueError(
                f"LinearDecay: total_rounds must be at least 1, not {self.total_rounds}."
            )
        if not 0.0 <= self.end <= 1.0:
            raise ValueError(f"LinearDecay: end must be in [0, 1], not {self.end}.")

    def __call__(self, round_number: tf.Tensor) -> tf.Tensor:
        """Maps a round's number, from 0, to the share of the learning rates, float32."""
        import tensorflow as tf

        past = tf.minimum(tf.cast(round_number, tf.float32) / self.total_rounds, 1.0)
        return 1.0 - (1.0 - self.end) * past


@dataclasses.dataclass(frozen=True)
class Turn:
    """Learning rates of what moves in one of several rounds, and rests in the others.

    Attributes:
        number: Which of them, from 0.
        of: How many rounds take turns.
    """

    number: int
    of: int

    def __call__(self, round_number: tf.Tensor) -> tf.Tensor:
        """Maps a round's number, from 0, to the share of the learning rates, 0 or 1, float32."""
        import tensorflow as tf

        return tf.cast(tf.equal(round_number % self.of, self.number), tf.float32)


@dataclasses.dataclass(frozen=True)
class ScheduledOptimizer:
    """An optimizer of a phase, or of a server, whose learning rate depends on the round.

    Outside a round, in evaluation, a phase has its full rate.

    Attributes:
        optimizer: One of TFF's, whose state holds its learning rate, or of Keras'.
        schedule: Maps the round's number, from 0, to the share of the rate, such as `LinearDecay`.
        share: That of a round, which `at_round` gives it.
    """

    optimizer: AnyOptimizer
    schedule: Callable[[tf.Tensor], tf.Tensor]
    share: tf.Tensor | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self):
        convert_optimizers(self, "optimizer")

    def at_round(self, round_number: tf.Tensor) -> ScheduledOptimizer:
        """Returns the optimizer with the rate of a round, an int32 tensor."""
        return dataclasses.replace(self, share=self.schedule(round_number))

    def initialize(self, specs: Specs) -> State:
        """Returns the optimizer's state before the first step, at the rate of the round."""
        state = self.optimizer.initialize(specs)
        if self.share is None:
            return state
        return {**state, "learning_rate": self.full_rate * self.share}

    @property
    def full_rate(self) -> Any:
        """The learning rate that is scheduled.

        Raises:
            UserError: If the optimizer has none.
        """
        state = self.optimizer.initialize({})
        if "learning_rate" not in state:
            raise UserError(f"{self.optimizer!r:.80} has no learning rate that can be scheduled.")
        return state["learning_rate"]

    def next(self, state: State, weights: Values, gradients: Values) -> tuple[State, Values]:
        """Takes a step of the optimizer."""
        return self.optimizer.next(state, weights, gradients)


CLIENT_OPTIMIZERS = ("sgd", "adam")
SERVER_OPTIMIZERS = ("sgd", "momentum", "adam", "yogi", "adagrad")
# The arguments that an optimizer of the server reads, beside its rate.
SERVER_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "adam": ("epsilon",),
    "yogi": ("epsilon", "initial_accumulator"),
    "adagrad": ("epsilon", "initial_accumulator"),
}


def optimizer(prefix: str, learning_rate: float, help: str, **traits: Any) -> Any:
    """Declares the options of an optimizer of clients, as an attribute of an `Options` class.

    `client = optimizer("client", 0.5, "Its rate.", kinds="Its kind.")` declares `client_optimizer`
    and `client_learning_rate`; `options.build("client")` is the optimizer.

    Args:
        prefix: What the options' names begin with.
        learning_rate: The default of the rate.
        help: The help of the rate.
        **traits: Of `OptimizerFamily`; others are of the rate's `Rule`.
    """
    names = {field.name for field in dataclasses.fields(OptimizerFamily)}
    rule = {name: traits.pop(name) for name in [*traits] if name not in names}
    rate = option(learning_rate, help, **(rule if "at_least" in rule else {"above": 0, **rule}))
    return OptimizerFamily(prefix, rate, **traits)


def decay_option() -> Any:
    """Declares the rounds until learning rates are 0, an option that families share."""
    return option(0, "Rounds until the server's and local rates are 0; 0: constant.", at_least=0)


@dataclasses.dataclass(frozen=True)
class OptimizerFamily(Family):
    """The options of an optimizer of clients.

    Attributes:
        prefix: What their names begin with.
        rate: The field of the learning rate.
        kinds: The help of an option for the optimizer's name; empty for none.
        kind_of: Where there is no such option: the prefix of the family whose kind this has, too;
            empty for SGD.
        decays: Whether the rate falls to 0 in `decay_rounds`.
        program: The prefix in a program; empty for the same.
        stand_in: Whether a program may give none: another one does its work then.
    """

    prefix: str
    rate: Any
    kinds: str = ""
    kind_of: str = ""
    decays: bool = False
    program: str = ""
    stand_in: bool = False

    @property
    def members(self) -> dict[str, tuple[str, dataclasses.Field]]:  # type: ignore[override]
        """The options."""
        kind = option("sgd", self.kinds, choices=CLIENT_OPTIMIZERS)
        return {
            **({f"{self.prefix}_optimizer": ("str", kind)} if self.kinds else {}),
            f"{self.prefix}_learning_rate": ("float", self.rate),
            **({"decay_rounds": ("int", decay_option())} if self.decays else {}),
        }

    @property
    def parameter(self) -> str:
        """What a program calls the optimizer."""
        return f"{self.program or self.prefix}_optimizer"

    def build(self, options: Any, **changes: Any) -> Optimizer:
        """Returns the optimizer that options describe, as `describe` reads them."""
        kind, rate, rounds = self.describe(options, **changes)
        return build_client_optimizer(kind, rate, decay_rounds=rounds)

    def describe(
        self, options: Any, *, kind_of: str = "", factor: float = 1.0, decays: bool | None = None
    ) -> tuple[str, float, int]:
        """Returns the kind, the learning rate and the rounds of decay that options describe.

        Args:
            options: The options.
            kind_of: The prefix of a family whose kind it has instead; empty for its own.
            factor: What the rate is multiplied by.
            decays: As of the attributes, in place of them; None for these.
        """
        owner = kind_of or (self.prefix if self.kinds else self.kind_of)
        kind = getattr(options, f"{owner}_optimizer") if owner else "sgd"
        rate = getattr(options, f"{self.prefix}_learning_rate") * factor
        decays = self.decays if decays is None else decays
        return kind, rate, options.decay_rounds if decays else 0


def as_server_optimizer(optimizer: AnyOptimizer) -> Optimizer:
    """Returns an optimizer of a server, whose state counts the rounds of a schedule.

    Raises:
        UserError: As of `as_tff_optimizer`, or if a scheduled one has no learning rate.
    """
    from fedpersonal.tff import optimizers

    if not isinstance(optimizer, ScheduledOptimizer):
        return as_tff_optimizer(optimizer)
    rate, schedule = optimizer.full_rate, optimizer.schedule
    return optimizers.schedule_learning_rate(optimizer.optimizer, lambda n: rate * schedule(n))


def build_client_optimizer(name: str, learning_rate: float, *, decay_rounds: int = 0) -> Optimizer:
    """Returns a client's optimizer.

    Args:
        name: One of `CLIENT_OPTIMIZERS`.
        learning_rate: Its rate.
        decay_rounds: Rounds over which the rate falls in a straight line to 0, or 0.
    """
    from fedpersonal.tff import optimizers

    check_choice("build_client_optimizer", "name", name, CLIENT_OPTIMIZERS)
    build: Any = optimizers.build_sgdm if name == "sgd" else optimizers.build_adam
    optimizer = build(learning_rate)
    return ScheduledOptimizer(optimizer, LinearDecay(decay_rounds)) if decay_rounds else optimizer


def build_server_optimizer(
    name: str,
    *,
    learning_rate: float,
    epsilon: float = 1e-3,
    initial_accumulator: float = 0.0,
    decay_rounds: int = 0,
) -> Optimizer:
    """Returns the server's optimizer.

    Args:
        name: One of `SERVER_OPTIMIZERS`; `momentum` is SGD with momentum 0.9, `yogi` has a beta2
            of 0.99 (Reddi et al., "Adaptive Federated Optimization", 2021).
        learning_rate: Its rate.
        epsilon: Of `adam`, `yogi` and `adagrad`: added to the preconditioner's root.
        initial_accumulator: Initial preconditioner of `yogi` and `adagrad`.
        decay_rounds: Rounds over which the rate falls in a straight line to 0, or 0 for a constant
            rate, with which the global variables swing with whom was drawn. With one that falls
            they settle, and what clients keep fits them.
    """
    from fedpersonal.tff import optimizers

    check_choice("build_server_optimizer", "name", name, SERVER_OPTIMIZERS)
    start = {"epsilon": epsilon, "initial_preconditioner_value": initial_accumulator}
    optimizer = {
        "sgd": lambda: optimizers.build_sgdm(learning_rate),
        "momentum": lambda: optimizers.build_sgdm(learning_rate, momentum=0.9),
        "adam": lambda: optimizers.build_adam(learning_rate, epsilon=epsilon),
        "yogi": lambda: optimizers.build_yogi(learning_rate, beta_2=0.99, **start),
        "adagrad": lambda: optimizers.build_adagrad(learning_rate, **start),
    }[name]()
    if not decay_rounds:
        return optimizer
    share = LinearDecay(decay_rounds)
    return optimizers.schedule_learning_rate(optimizer, lambda n: learning_rate * share(n))

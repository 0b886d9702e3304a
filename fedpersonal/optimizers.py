"""Optimizers by name, and the options that describe them.

TensorFlow is imported when an optimizer is built.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np

from fedpersonal import former
from fedpersonal.errors import UserError, check_choice
from fedpersonal.options import OptionGroup, option

if TYPE_CHECKING:
    import tensorflow as tf

    Values = Mapping[str, tf.Tensor]
    Specs = Mapping[str, tf.TensorSpec]
    State = Mapping[str, Any]


class Optimizer(Protocol):
    """The protocol of optimizers: those of TFF, or any object with these two functions."""

    def initialize(self, specs: Specs) -> State:
        """Returns the state before the first step of values of the given shapes, by name."""

    def next(self, state: State, weights: Values, gradients: Values) -> tuple[State, Values]:
        """Returns the next state and the values after a step."""


AnyOptimizer = Union[Optimizer, "tf.keras.optimizers.Optimizer"]


def as_tff_optimizer(optimizer: AnyOptimizer) -> Optimizer:
    """Returns the TFF counterpart of a Keras optimizer; other optimizers unchanged.

    SGD (with momentum), Adam, AdamW and Adagrad have counterparts whose steps are equal up to
    rounding. Equal options give the same counterpart. The learning rate of a Keras optimizer is a
    variable that graphs cannot read. So phases, processes and other users convert an optimizer
    when they are constructed, and later changes of the variable have no effect.

    Raises:
        UserError: If there is no counterpart, or the counterpart lacks an option that is set.
    """
    if hasattr(optimizer, "initialize") and hasattr(optimizer, "next"):
        return optimizer
    import tensorflow as tf

    legacy = tf.keras.optimizers.legacy.Optimizer
    if isinstance(optimizer, (tf.keras.optimizers.Optimizer, legacy)):
        return _convert_keras_optimizer(optimizer)
    raise UserError(
        f"{optimizer!r} is no optimizer: give one of tf.keras.optimizers, such as SGD(0.1), or "
        "of tff.learning.optimizers."
    )


def convert_optimizers(instance: Any, *names: str) -> None:
    """Converts optimizers in fields of a frozen dataclass by `as_tff_optimizer`.

    Args:
        instance: The dataclass instance.
        *names: The fields, each an optimizer or a mapping of names to optimizers.

    Raises:
        UserError: As of `as_tff_optimizer`.
    """
    for name in names:
        value = getattr(instance, name)
        if isinstance(value, Mapping):
            converted: Any = {key: as_tff_optimizer(one) for key, one in value.items()}
        else:
            converted = as_tff_optimizer(value)
        object.__setattr__(instance, name, converted)


def _convert_keras_optimizer(optimizer: tf.keras.optimizers.Optimizer) -> Optimizer:
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
    arguments = {key: options.pop(key) for key in ("beta_1", "beta_2", "epsilon") if key in options}
    if kind == "SGD":
        arguments["momentum"] = float(options.pop("momentum")) or None
    elif kind == "AdamW":
        arguments["weight_decay"] = options.pop("weight_decay") or 0.0
    elif kind == "Adagrad":
        arguments["initial_preconditioner_value"] = options.pop("initial_accumulator_value")
    harmless = ("name", "jit_compile", "is_legacy_optimizer", "ema_momentum")
    used = {key: value for key, value in options.items() if value and key not in harmless}
    if not options.get("use_ema"):
        used.pop("ema_overwrite_frequency", None)
    excluded = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_names")
    if any(getattr(optimizer, name, None) for name in excluded):
        used["exclude_from_weight_decay"] = "..."
    if used:
        settings = ", ".join(f"{key}={value}" for key, value in used.items())
        raise UserError(
            f"Keras optimizer {kind}: {settings} has no counterpart here; leave it out."
        )
    # Keras stores 0.2 in float32 and returns 0.20000000298; descriptions show 0.2.
    return _build(kind, learning_rate=float(str(np.float32(rate))), **arguments)


def _check_legacy(optimizer: Any, options: Mapping[str, Any]) -> None:
    """Raises a UserError if the steps of a legacy Keras optimizer differ from the current ones."""
    import tensorflow as tf

    if not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        return
    kind = type(optimizer).__name__
    differences = {
        "momentum": "its momentum moves those rows of an embedding alone that a batch has",
        "epsilon": "its epsilon is added to the root of the accumulator, not within it",
    }
    name = {"SGD": "momentum", "Adagrad": "epsilon"}.get(kind, "")
    if options.get(name, 0.0) > 1e-6:
        raise UserError(
            f"Keras' legacy {kind} with {name}={options[name]} has no counterpart here: "
            f"{differences[name]}. Give tf.keras.optimizers.{kind}."
        )


_BUILDERS = {
    "SGD": "build_sgdm", "Adam": "build_adam", "AdamW": "build_adamw", "Adagrad": "build_adagrad"
}  # fmt: skip


# Cached, so that phases of equal optimizers are equal and share their traced functions.
@functools.lru_cache(maxsize=256)
def _build(kind: str, **options: Any) -> Optimizer:
    from fedpersonal.tff import optimizers

    return getattr(optimizers, _BUILDERS[kind])(**options)


class ConstrainedOptimizer:
    """A server's optimizer that applies constraints to variables after each step that moves them.

    Like Keras, a round without clients keeps initial values that violate a constraint.

    Attributes:
        optimizer: The optimizer of the variables.
        constraints: Variable's name to the function that maps its value to an allowed value.
    """

    def __init__(self, optimizer: Optimizer, constraints: Mapping[str, Callable[[Any], Any]]):
        self.optimizer, self.constraints = optimizer, constraints

    def initialize(self, specs: Specs) -> State:
        """Returns the state before the first step of values of the given shapes, by name."""
        return self.optimizer.initialize(specs)

    def next(self, state: State, weights: Values, gradients: Values) -> tuple[State, Values]:
        """Returns the next state and the values after a step."""
        import tensorflow as tf

        state, moved = self.optimizer.next(state, weights, gradients)
        constrained = collections.OrderedDict(moved)
        for name, constraint in self.constraints.items():
            is_moved = tf.reduce_any(moved[name] != weights[name])
            constrained[name] = tf.where(is_moved, constraint(moved[name]), moved[name])
        return state, constrained


# Schedules import TensorFlow in their calls, because options describe schedules without it.


@dataclasses.dataclass(frozen=True)
class LinearDecay:
    """A linear decay of learning rates from the first round on.

    Attributes:
        total_rounds: Rounds until the rates reach `end`; then they are constant.
        end: The final share of the rates, in [0, 1].
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
class AlternatingRate:
    """A schedule of variables that train in one of several rounds, and rest in the others.

    Attributes:
        turn: The place of the training round in a period, from 0.
        period: The number of rounds in a period.
    """

    turn: int
    period: int

    def __call__(self, round_number: tf.Tensor) -> tf.Tensor:
        """Maps a round's number, from 0, to the share of the learning rates, 0 or 1, float32."""
        import tensorflow as tf

        return tf.cast(tf.equal(round_number % self.period, self.turn), tf.float32)


@dataclasses.dataclass(frozen=True)
class ScheduledOptimizer:
    """An optimizer of a phase or a server whose learning rate depends on the round.

    Outside rounds, in evaluation, a phase uses its full rate.

    Attributes:
        optimizer: A TFF optimizer with the learning rate in its state, or a Keras optimizer.
        schedule: Maps the round's number, from 0, to the share of the rate, such as `LinearDecay`.
        share: The share of a round, which `at_round` sets.
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
        """The scheduled learning rate.

        Raises:
            UserError: If the optimizer has no learning rate.
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
# Server optimizer to its arguments besides the rate.
SERVER_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "adam": ("epsilon",),
    "yogi": ("epsilon", "initial_accumulator"),
    "adagrad": ("epsilon", "initial_accumulator"),
}


@former.renamed_arguments(
    kinds="kind_help", kind_of="kind_from", program="parameter_prefix", stand_in="is_optional"
)
def optimizer(prefix: str, learning_rate: float, help: str, **fields: Any) -> Any:
    """Declares the options of an optimizer of clients, as an attribute of an `Options` class.

    `client = optimizer("client", 0.5, "Rate.", kind_help="Optimizer.")` declares
    `client_optimizer` and `client_learning_rate`; `options.build("client")` is the optimizer.

    Args:
        prefix: The prefix of the options' names.
        learning_rate: The default of the rate.
        help: The help of the rate.
        **fields: Fields of `OptimizerGroup`, and of the rate's `ValueRule`.
    """
    names = {field.name for field in dataclasses.fields(OptimizerGroup)}
    rule = {name: fields.pop(name) for name in [*fields] if name not in names}
    rate = option(learning_rate, help, **(rule if "at_least" in rule else {"above": 0, **rule}))
    return OptimizerGroup(prefix, rate, **fields)


def decay_option() -> Any:
    """Declares the rounds until learning rates are 0, an option that groups share."""
    return option(0, "Rounds until the server's and local rates are 0; 0: constant.", at_least=0)


@dataclasses.dataclass(frozen=True)
class OptimizerGroup(OptionGroup):
    """The options of an optimizer of clients.

    Attributes:
        prefix: The prefix of the options' names.
        rate: The field of the learning rate.
        kind_help: The help of the option of the optimizer's name; "" for no such option.
        kind_from: Without that option, the prefix of the group whose kind is used; "" for SGD.
        decays: Whether the rate falls to 0 in `decay_rounds`.
        parameter_prefix: The prefix of the parameter of a method's function; "" for `prefix`.
        is_optional: Whether the argument of a method's function may be None, because another
            optimizer replaces it.
    """

    prefix: str
    rate: Any
    kind_help: str = ""
    kind_from: str = ""
    decays: bool = False
    parameter_prefix: str = ""
    is_optional: bool = False

    @property
    def members(self) -> dict[str, tuple[str, dataclasses.Field]]:  # type: ignore[override]
        """The options by name."""
        kind = option("sgd", self.kind_help, choices=CLIENT_OPTIMIZERS)
        return {
            **({f"{self.prefix}_optimizer": ("str", kind)} if self.kind_help else {}),
            f"{self.prefix}_learning_rate": ("float", self.rate),
            **({"decay_rounds": ("int", decay_option())} if self.decays else {}),
        }

    @property
    def parameter(self) -> str:
        """The name of the optimizer's parameter in a method's function."""
        return f"{self.parameter_prefix or self.prefix}_optimizer"

    def build(self, options: Any, **changes: Any) -> Optimizer:
        """Returns the optimizer of the options; `changes` are arguments of `describe`."""
        kind, rate, rounds = self.describe(options, **changes)
        return build_client_optimizer(kind, rate, decay_rounds=rounds)

    @former.renamed_arguments(kind_of="kind_from")
    def describe(
        self, options: Any, *, kind_from: str = "", factor: float = 1.0, decays: bool | None = None
    ) -> tuple[str, float, int]:
        """Returns the kind, the learning rate and the rounds of decay that options describe.

        Args:
            options: The options.
            kind_from: The prefix of the group whose kind is used instead; "" for the default.
            factor: The factor of the rate.
            decays: Overrides the attribute, unless None.
        """
        prefix = kind_from or (self.prefix if self.kind_help else self.kind_from)
        kind = getattr(options, f"{prefix}_optimizer") if prefix else "sgd"
        rate = getattr(options, f"{self.prefix}_learning_rate") * factor
        decays = self.decays if decays is None else decays
        return kind, rate, options.decay_rounds if decays else 0


def as_server_optimizer(optimizer: AnyOptimizer) -> Optimizer:
    """Converts an optimizer to one of a server, whose state counts the rounds of a schedule.

    Raises:
        UserError: As of `as_tff_optimizer`, or if a scheduled optimizer has no learning rate.
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
        learning_rate: The learning rate.
        decay_rounds: Rounds in which the rate falls linearly to 0, or 0 for a constant rate.
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
        learning_rate: The learning rate.
        epsilon: For `adam`, `yogi` and `adagrad`: added to the preconditioner's root.
        initial_accumulator: Initial preconditioner of `yogi` and `adagrad`.
        decay_rounds: Rounds in which the rate falls linearly to 0, or 0 for a constant rate. With a
            constant rate the global variables fluctuate with the sampled clients. With a decay
            they converge, and the kept local variables match them.
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

"""Optimizers by name, and the options that describe them.

TensorFlow is imported when one is built.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fedpersonal.errors import check_choice
from fedpersonal.optimizers.rate_schedule import LinearDecay, ScheduledOptimizer
from fedpersonal.options import Family, option

if TYPE_CHECKING:
    import tensorflow_federated as tff

CLIENT_OPTIMIZERS = ("sgd", "adam")
SERVER_OPTIMIZERS = ("sgd", "momentum", "adam", "yogi", "adagrad")


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

    def build(
        self, options: Any, *, kind_of: str = "", factor: float = 1.0
    ) -> tff.learning.optimizers.Optimizer:
        """Returns the optimizer.

        Args:
            options: The options.
            kind_of: The prefix of a family whose kind it has instead; empty for its own.
            factor: What the rate is multiplied by.
        """
        owner = kind_of or (self.prefix if self.kinds else self.kind_of)
        kind = getattr(options, f"{owner}_optimizer") if owner else "sgd"
        rate = getattr(options, f"{self.prefix}_learning_rate") * factor
        rounds = options.decay_rounds if self.decays else 0
        return build_client_optimizer(kind, rate, decay_rounds=rounds)


def build_client_optimizer(
    name: str, learning_rate: float, *, decay_rounds: int = 0
) -> tff.learning.optimizers.Optimizer:
    """Returns a client's optimizer.

    Args:
        name: One of `CLIENT_OPTIMIZERS`.
        learning_rate: Its rate.
        decay_rounds: Rounds over which the rate falls in a straight line to 0, or 0.
    """
    import tensorflow_federated as tff

    check_choice("build_client_optimizer", "name", name, CLIENT_OPTIMIZERS)
    optimizers = tff.learning.optimizers
    build = optimizers.build_sgdm if name == "sgd" else optimizers.build_adam
    optimizer = build(learning_rate)
    return ScheduledOptimizer(optimizer, LinearDecay(decay_rounds)) if decay_rounds else optimizer


def build_server_optimizer(
    name: str,
    *,
    learning_rate: float,
    epsilon: float = 1e-3,
    initial_accumulator: float = 0.0,
    decay_rounds: int = 0,
) -> tff.learning.optimizers.Optimizer:
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
    import tensorflow_federated as tff

    check_choice("build_server_optimizer", "name", name, SERVER_OPTIMIZERS)
    optimizers = tff.learning.optimizers
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

"""Optimizers by name; TensorFlow is imported when one is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpersonal.errors import check_choice
from fedpersonal.optimizers.rate_schedule import LinearDecay, ScheduledOptimizer

if TYPE_CHECKING:
    import tensorflow_federated as tff

CLIENT_OPTIMIZERS = ("sgd", "adam")
SERVER_OPTIMIZERS = ("sgd", "momentum", "adam", "yogi", "adagrad")


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
            rate. Where few and unlike clients take part in a round, the global variables swing
            with whom was drawn, by as much as the rate lets them; with one that falls they settle,
            and what clients keep fits them.
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

"""The server's optimizers by name."""

from __future__ import annotations

from typing import Any

import tensorflow_federated as tff

from fedpersonal.algorithm import check_choice

SERVER_OPTIMIZERS = ("sgd", "momentum", "adam", "yogi", "adagrad")


def build_server_optimizer(
    name: str, *, learning_rate: float, epsilon: float = 1e-3, initial_accumulator: float = 0.0
) -> Any:
    """Returns a `tff.learning.optimizers.Optimizer`.

    Args:
        name: One of `SERVER_OPTIMIZERS`; `momentum` is SGD with momentum 0.9, `yogi` has a beta2
            of 0.99 (Reddi et al., "Adaptive Federated Optimization", 2021).
        learning_rate: Its rate.
        epsilon: Of `adam`, `yogi` and `adagrad`: added to the preconditioner's root.
        initial_accumulator: Initial preconditioner of `yogi` and `adagrad`.
    """
    check_choice("build_server_optimizer", "name", name, SERVER_OPTIMIZERS)
    optimizers = tff.learning.optimizers
    if name == "sgd":
        return optimizers.build_sgdm(learning_rate)
    if name == "momentum":
        return optimizers.build_sgdm(learning_rate, momentum=0.9)
    if name == "adam":
        return optimizers.build_adam(learning_rate, epsilon=epsilon)
    if name == "yogi":
        return optimizers.build_yogi(
            learning_rate,
            beta_2=0.99,
            epsilon=epsilon,
            initial_preconditioner_value=initial_accumulator,
        )
    return optimizers.build_adagrad(
        learning_rate, initial_preconditioner_value=initial_accumulator, epsilon=epsilon
    )

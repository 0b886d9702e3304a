"""Personal and context embeddings in front of a frozen language model (FedPerC).

Silva et al., "FedPerC: Federated Learning for Language Generation with Personal and Context
Preference Embeddings", EACL Findings 2023, Algorithm 1 with a frozen base. Algorithm 2 is the same
phase on the generators' layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpersonal.algorithm import Algorithm, GradientPhase


def fedperc(
    *,
    client_optimizer: Any,
    local_steps: int = 10,
    proximal: float = 1.0,
    layers: Sequence[str] | None = None,
    weighting: str = "uniform",
) -> Algorithm:
    """Returns the one phase of FedPerC.

    Args:
        client_optimizer: Optimizer of all embeddings, such as Adam.
        local_steps: Steps of a round, K.
        proximal: Weight of FedProx' term, which holds on to the shared variables.
        layers: The layers that move, or None for all that are not frozen.
        weighting: `uniform`, as in the paper, or `num_examples`.
    """
    phase = GradientPhase(
        variables="all" if layers is None else tuple(layers),
        data="all",
        optimizer=client_optimizer,
        epochs=local_steps,
        max_steps=local_steps,
        proximal=proximal,
    )
    return Algorithm(
        name="fedperc",
        phases=(phase,),
        local_variables="kept",
        weighting=weighting,
    )

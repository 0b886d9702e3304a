"""Personal and context embeddings in front of a frozen language model (FedPerC).

Silva et al., "FedPerC: Federated Learning for Language Generation with Personal and Context
Preference Embeddings", EACL Findings 2023, Algorithm 1 with a frozen base. Algorithm 2 is the same
phase on the generators' layers.

Departures: the base is a small GPT-2, pretrained here, where the paper has DistilGPT2. Generators
read other texts of the user once, before; the paper's move the embeddings with each token of the
text that is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpersonal.algorithm import Algorithm, GradientPhase

if TYPE_CHECKING:
    import tensorflow_federated as tff


def fedperc(
    *,
    client_optimizer: tff.learning.optimizers.Optimizer,
    local_epochs: int = 10,
    max_local_steps: int | None = 10,
    proximal: float = 1.0,
    layers: Sequence[str] | None = None,
    weighting: str = "uniform",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns the one phase of FedPerC.

    Args:
        client_optimizer: Optimizer of all embeddings, such as Adam.
        local_epochs: Passes over what a client has drawn for the round.
        max_local_steps: Steps of a round, K.
        proximal: Weight of FedProx' term, which holds on to the shared variables.
        layers: The layers that move, or None for all that are not frozen.
        weighting: `uniform`, as in the paper, or `num_examples`.
        max_update_norm: Bound on the norm of a client's update, or None.
    """
    phase = GradientPhase(
        variables="all" if layers is None else tuple(layers),
        data="all",
        optimizer=client_optimizer,
        epochs=local_epochs,
        max_steps=max_local_steps,
        proximal=proximal,
    )
    return Algorithm("fedperc", (phase,), "kept", weighting, max_update_norm)

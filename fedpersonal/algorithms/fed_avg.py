"""Federated averaging of a fully global model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017. Its personalised rivals train alike and fine-tune each client's copy afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedpersonal.algorithm import Algorithm, GradientPhase
from fedpersonal.algorithms.method import (
    ClientOptions,
    FinetuningOptions,
    Layers,
    Method,
    RebuildingOptions,
)

if TYPE_CHECKING:
    import tensorflow_federated as tff


def fed_avg(
    *,
    client_optimizer: tff.learning.optimizers.Optimizer,
    optimizers: Mapping[str, tff.learning.optimizers.Optimizer] | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    proximal: float = 0.0,
    weighting: str = "num_examples",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns the one phase of FedAvg: all variables on all of the client's data.

    Args:
        client_optimizer: Optimizer of the client's copy of the model.
        optimizers: Others for some of its layers, by name.
        local_epochs: Passes over the client's data.
        max_local_steps: Bound on the steps of all epochs.
        proximal: Weight of FedProx' term, or 0.
        weighting: `num_examples` or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.
    """
    phase = GradientPhase(
        "all", "all", client_optimizer, local_epochs, max_local_steps, optimizers or {}, proximal
    )
    return Algorithm("fed_avg", (phase,), "none", weighting, max_update_norm)


def build(options: ClientOptions, layers: Layers) -> Algorithm:
    """Returns FedAvg as options describe it."""
    del layers
    return fed_avg(**options.local_work())


class _Finetuned(ClientOptions, FinetuningOptions):
    """FedAvg, and fine-tuning."""


class _PartFinetuned(ClientOptions, RebuildingOptions):
    """FedAvg, and fine-tuning of a part at the rates of a reconstruction."""


METHODS = (
    Method("fed_avg", "FedAvg", build, server_optimizer="sgd"),
    Method("fed_avg_finetuning", "FedAvg + fine-tuning", build, _Finetuned, finetunes="all"),
    Method(
        "embedding_finetuning",
        "FedAvg + fine-tuning of embeddings",
        build,
        _PartFinetuned,
        finetunes="embedding",
    ),
)

"""Federated averaging of a fully global model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, generalised to server optimizers by Reddi et al., "Adaptive Federated Optimization",
ICLR 2021. The baseline of the FedRecon paper's Table 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpersonal.algorithm import Algorithm, GradientPhase


def fed_avg(
    *,
    client_optimizer: Any,
    optimizers: Mapping[str, Any] | None = None,
    epochs: int = 1,
    max_steps: int | None = None,
    weighting: str = "num_examples",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns the one phase of FedAvg: all variables on all of the client's data.

    Args:
        client_optimizer: Optimizer of the client's copy of the model.
        optimizers: Others for some of its layers, by name.
        epochs: Passes over the client's data.
        max_steps: Bound on the steps of all epochs.
        weighting: `num_examples` or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.
    """
    phase = GradientPhase(
        variables="all",
        data="all",
        optimizer=client_optimizer,
        epochs=epochs,
        max_steps=max_steps,
        optimizers=optimizers or {},
    )
    return Algorithm(
        name="fed_avg",
        phases=(phase,),
        local_variables="none",
        weighting=weighting,
        max_update_norm=max_update_norm,
    )

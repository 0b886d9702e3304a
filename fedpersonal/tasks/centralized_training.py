"""Training without federation, of any task: one client that holds everybody's data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedpersonal.algorithm import Algorithm
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.boundary import check_boundary
from fedpersonal.process.shards import pack_cohort
from fedpersonal.process.training import build_packed_process
from fedpersonal.tasks.federated_training import Training


def build_centralized_training(
    model: PartitionedModel,
    algorithm: Algorithm,
    train: ClientDataset,
    *,
    server_optimizer: Any,
    batch_size: int,
    rounds_per_epoch: int = 1,
    packing: str = "stacked",
    seed: int = 0,
) -> Training:
    """Builds training on all clients' examples together, shuffled in each epoch.

    Args:
        model: A model without local variables.
        algorithm: `fed_avg`; a round is its epochs over a part of the data.
        train: The training clients, to be pooled.
        server_optimizer: SGD of rate 1, to take the pooled client's result as it is.
        batch_size: Examples a batch.
        rounds_per_epoch: Rounds that together see each example once.
        packing: `stacked` or `pooled`.
        seed: Seed of initial values and of the shuffles.
    """
    process = build_packed_process(
        model,
        algorithm,
        server_optimizer=server_optimizer,
        clients=1,
        batch_size=batch_size,
        packing=packing,
        seed=seed,
    )
    size = math.ceil(train.num_examples / rounds_per_epoch)

    def cohort_fn(round_number: int) -> Any:
        epoch, part = divmod(round_number - 1, rounds_per_epoch)
        order = np.random.default_rng([seed, 1 + epoch]).permutation(train.num_examples)
        chosen = order[part * size : (part + 1) * size]
        pooled = ClientDataset(
            client_ids=np.array(["everyone"], object),
            offsets=np.array([0, len(chosen)]),
            features={k: v[chosen] for k, v in train.features.items()},
            labels=train.labels[chosen],
        )
        return pack_cohort(model, pooled, [0], clients=1, batch_size=batch_size)

    return Training(process, cohort_fn, check_boundary(model, process.next))

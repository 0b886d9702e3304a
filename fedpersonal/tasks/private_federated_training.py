"""Federated training, of any task, of clients that keep local variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedpersonal.algorithm import Algorithm
from fedpersonal.boundary import check_boundary
from fedpersonal.datasets.client_dataset import ClientDataset
from fedpersonal.execution import client_datasets, deal_clients, pack_cohort
from fedpersonal.partition import PartitionedModel
from fedpersonal.private_training import (
    build_private_packed_process,
    build_private_per_client_process,
)
from fedpersonal.simulation.private_rounds import PrivateCohort
from fedpersonal.tasks.federated_training import Training, clients_a_member, cohort_reader


def build_private_training(
    model: PartitionedModel,
    algorithm: Algorithm,
    train: ClientDataset,
    *,
    server_optimizer: Any,
    sample: Callable[[int], np.ndarray],
    clients_per_round: int,
    batch_size: int,
    execution: str = "packed",
    packing: str = "stacked",
    examples_per_round: int | None = None,
    seed: int = 0,
) -> Training:
    """Builds federated training whose process is to be joined to a store by `PrivateProcess`.

    Args:
        model: The partitioned model.
        algorithm: What a client does; it keeps its local variables.
        train: The training clients.
        server_optimizer: A `tff.learning.optimizers.Optimizer`.
        sample: Round number to the indices of the clients that take part.
        clients_per_round: The most that `sample` returns.
        batch_size: Examples a batch.
        execution: `packed` or `per_client`.
        packing: `stacked` or `pooled`, for packed execution.
        examples_per_round: How many examples a client draws at random for a round, or None for all.
        seed: Seed of initial values and of these draws.
    """
    cohort_data = cohort_reader(train, sample, examples_per_round=examples_per_round, seed=seed)
    if execution == "per_client":
        process = build_private_per_client_process(
            model, algorithm, server_optimizer=server_optimizer, seed=seed
        )

        def cohort_fn(round_number: int) -> PrivateCohort:
            data, indices = cohort_data(round_number)
            return PrivateCohort(
                data.client_ids[indices],
                client_datasets(model, data, indices, batch_size=batch_size),
                [np.array([place], np.int32) for place in range(len(indices))],
            )

        return Training(process, cohort_fn, check_boundary(model, process.next))
    clients = clients_a_member(clients_per_round)
    process = build_private_packed_process(
        model,
        algorithm,
        server_optimizer=server_optimizer,
        clients=clients,
        batch_size=batch_size,
        packing=packing,
        seed=seed,
    )

    def packed_cohort_fn(round_number: int) -> PrivateCohort:
        data, indices = cohort_data(round_number)
        members = pack_cohort(
            model,
            data,
            indices,
            clients=clients,
            batch_size=batch_size,
            touched_data=algorithm.touched_data,
        )
        dealt = deal_clients(data.counts[indices], clients=clients)
        places = [np.pad(p, (0, clients - len(p)), constant_values=-1) for p in dealt]
        return PrivateCohort(data.client_ids[indices], members, places)

    return Training(process, packed_cohort_fn, check_boundary(model, process.next))

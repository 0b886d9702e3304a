"""Federated training of any task: a process, its cohorts, and what crosses its boundary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.example_sampling import draw_examples
from fedpersonal.local_state.rounds import PrivateCohort
from fedpersonal.model.partition import PartitionedModel, VariableSpec
from fedpersonal.process.boundary import Crossing, check_boundary
from fedpersonal.process.kept_training import (
    build_private_packed_process,
    build_private_per_client_process,
)
from fedpersonal.process.shards import (
    client_datasets,
    deal_clients,
    default_num_members,
    pack_cohort,
)
from fedpersonal.process.training import build_packed_process, build_per_client_process


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """A training process and how its cohorts are made.

    Attributes:
        process: `initialize()`, and `next(state, cohort)` with flat training metrics; where clients
            keep variables, a process that `PrivateProcess` joins to their store.
        cohort_fn: Round number to cohort.
        crossings: What the process broadcasts and aggregates.
        kept_variables: The local variables that clients keep from round to round.
    """

    process: Any
    cohort_fn: Callable[[int], Any]
    crossings: list[Crossing]
    kept_variables: Sequence[VariableSpec] = ()


def build_training(
    model: PartitionedModel,
    algorithm: Algorithm,
    train: Any,
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
    """Builds federated training.

    Args:
        model: The partitioned model.
        algorithm: What a client does.
        train: The training clients: a `ClientDataset`, or anything whose `subset(indices)` is one.
        server_optimizer: A `tff.learning.optimizers.Optimizer`.
        sample: Round number to the indices of the clients that take part.
        clients_per_round: The most that `sample` returns.
        batch_size: Examples a batch.
        execution: `packed` or `per_client`.
        packing: `stacked` or `pooled`, for packed execution.
        examples_per_round: How many examples a client draws at random for a round, or None for all.
        seed: Seed of initial values and of these draws.
    """
    cohort_data = _cohort_reader(train, sample, examples_per_round=examples_per_round, seed=seed)
    shared = {"server_optimizer": server_optimizer, "seed": seed}
    if execution == "packed":
        clients = _clients_a_member(clients_per_round)
        build = build_private_packed_process if algorithm.keeps else build_packed_process
        process = build(
            model, algorithm, clients=clients, batch_size=batch_size, packing=packing, **shared
        )

        def members_of(data: ClientDataset, indices: np.ndarray) -> list:
            return pack_cohort(
                model,
                data,
                indices,
                clients=clients,
                batch_size=batch_size,
                touched_data=algorithm.touched_data,
            )

        def places_of(counts: np.ndarray) -> list[np.ndarray]:
            dealt = deal_clients(counts, clients=clients)
            return [np.pad(p, (0, clients - len(p)), constant_values=-1) for p in dealt]

    else:
        build = build_private_per_client_process if algorithm.keeps else build_per_client_process
        process = build(model, algorithm, **shared)

        def members_of(data: ClientDataset, indices: np.ndarray) -> list:
            return client_datasets(model, data, indices, batch_size=batch_size)

        def places_of(counts: np.ndarray) -> list[np.ndarray]:
            return [np.array([place], np.int32) for place in range(len(counts))]

    def cohort_fn(round_number: int) -> Any:
        data, indices = cohort_data(round_number)
        members = members_of(data, indices)
        if not algorithm.keeps:
            return members
        return PrivateCohort(data.client_ids[indices], members, places_of(data.counts[indices]))

    crossings = check_boundary(model, process.next)
    if isinstance(process, tff.learning.templates.LearningProcess):
        process = _FlatMetrics(process)
    return Training(process, cohort_fn, crossings, model.local_variables if algorithm.keeps else ())


def _clients_a_member(clients_per_round: int) -> int:
    """Returns how many clients each member of a packed cohort holds: one member a processor."""
    return math.ceil(clients_per_round / min(default_num_members(), clients_per_round))


def _cohort_reader(
    train: Any,
    sample: Callable[[int], np.ndarray],
    *,
    examples_per_round: int | None,
    seed: int,
) -> Callable[[int], tuple[ClientDataset, np.ndarray]]:
    """Returns what maps a round's number to a data set and the cohort's places in it.

    Clients that are not in memory are read.

    Args:
        train: As of `build_training`.
        sample: Round number to the indices of the clients that take part.
        examples_per_round: How many examples each of them draws at random, or None for all.
        seed: Seed of these draws.
    """

    def cohort_data(round_number: int) -> tuple[ClientDataset, np.ndarray]:
        indices = sample(round_number)
        everybody = np.arange(len(indices))
        if examples_per_round is not None:
            drawn = draw_examples(
                train, indices, count=examples_per_round, seed=[seed, round_number]
            )
            return drawn, everybody
        if isinstance(train, ClientDataset):
            return train, indices
        return train.subset(indices), everybody

    return cohort_data


class _FlatMetrics:
    """A learning process whose output carries its clients' training metrics alone."""

    def __init__(self, process: Any):
        self._process = process
        self.initialize = process.initialize

    def next(self, state: Any, cohort: Any) -> Any:
        output = self._process.next(state, cohort)
        return output._replace(metrics=output.metrics["client_work"]["train"])

"""Training of any task: a process, its cohorts, and what crosses its boundary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.example_sampling import draw_examples
from fedpersonal.model.partition import PartitionedModel, VariableSpec
from fedpersonal.process.boundary import Crossing, check_boundary
from fedpersonal.process.execution import Execution
from fedpersonal.process.process import Process, build_process
from fedpersonal.process.shards import Cohort, make_cohort


class Clients(Protocol):
    """Clients of whom some are had at a time: a `ClientDataset`, or what reads one from files."""

    def subset(self, indices: np.ndarray) -> ClientDataset:
        """Returns some of them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """A training process and how its cohorts are made.

    Attributes:
        process: What `Rounds` runs.
        cohort_fn: Round number to cohort.
        crossings: What the process broadcasts and aggregates.
        kept_variables: The local variables that clients keep from round to round.
    """

    process: Process
    cohort_fn: Callable[[int], Cohort]
    crossings: list[Crossing]
    kept_variables: Sequence[VariableSpec] = ()


def build_training(
    model: PartitionedModel,
    algorithm: Algorithm,
    train: Clients,
    *,
    server_optimizer: tff.learning.optimizers.Optimizer,
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
        train: The training clients.
        server_optimizer: What takes the mean of the clients' updates for a gradient.
        sample: Round number to the indices of the clients that take part.
        clients_per_round: The most that `sample` returns.
        batch_size: Examples a batch.
        execution: `packed` or `per_client`.
        packing: `stacked` or `pooled`, for packed execution.
        examples_per_round: How many examples a client draws at random for a round, or None for all.
        seed: Seed of initial values and of these draws.
    """

    def clients_of(round_number: int) -> tuple[ClientDataset, np.ndarray]:
        indices = sample(round_number)
        if examples_per_round is not None:
            train_seed = [seed, round_number]
            drawn = draw_examples(train, indices, count=examples_per_round, seed=train_seed)
            return drawn, np.arange(len(indices))
        if isinstance(train, ClientDataset):
            return train, indices
        return train.subset(indices), np.arange(len(indices))

    how = Execution.for_cohorts(
        clients_per_round, kind=execution, batch_size=batch_size, packing=packing
    )
    return _training(model, algorithm, how, server_optimizer, seed, clients_of)


def build_centralized_training(
    model: PartitionedModel,
    algorithm: Algorithm,
    train: ClientDataset,
    *,
    server_optimizer: tff.learning.optimizers.Optimizer,
    batch_size: int,
    rounds_per_epoch: int = 1,
    packing: str = "stacked",
    seed: int = 0,
) -> Training:
    """Builds training of one client that holds everybody's examples, shuffled in each epoch.

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
    size = math.ceil(train.num_examples / rounds_per_epoch)

    def everybody(round_number: int) -> tuple[ClientDataset, np.ndarray]:
        epoch, part = divmod(round_number - 1, rounds_per_epoch)
        order = np.random.default_rng([seed, 1 + epoch]).permutation(train.num_examples)
        chosen = order[part * size : (part + 1) * size]
        pooled = ClientDataset(
            client_ids=np.array(["everyone"], object),
            offsets=np.array([0, len(chosen)]),
            features={k: v[chosen] for k, v in train.features.items()},
            labels=train.labels[chosen],
        )
        return pooled, np.arange(1)

    how = Execution.packed(batch_size=batch_size, clients_per_shard=1, packing=packing)
    return _training(model, algorithm, how, server_optimizer, seed, everybody)


def _training(
    model: PartitionedModel,
    algorithm: Algorithm,
    execution: Execution,
    server_optimizer: tff.learning.optimizers.Optimizer,
    seed: int,
    clients_of: Callable[[int], tuple[ClientDataset, np.ndarray]],
) -> Training:
    """Builds training whose rounds take the clients at some indices of a data set."""
    process = build_process(
        model, algorithm, execution=execution, server_optimizer=server_optimizer, seed=seed
    )

    def cohort_fn(round_number: int) -> Cohort:
        data, indices = clients_of(round_number)
        touched = algorithm.touched_data
        return make_cohort(model, data, indices, execution=execution, touched_data=touched)

    crossings = check_boundary(model, process.next)
    return Training(process, cohort_fn, crossings, model.local_variables if algorithm.keeps else ())

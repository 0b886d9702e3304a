"""A cohort, divided into shards: the clients of one TFF CLIENTS member each."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm
from fedpersonal.client.values import Examples
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.datasets import client_datasets, dataset_type, examples_from_dataset
from fedpersonal.process.execution import Execution
from fedpersonal.process.local_values import local_of, local_type
from fedpersonal.process.packing import as_examples, pack_clients, packed_type


class Shard(NamedTuple):
    """The clients of one TFF CLIENTS member.

    Attributes:
        places: int32 (C,): which client of the cohort each is, -1 for none.
        examples: Theirs: a `tf.data.Dataset` of one client's batches, or padded arrays.
    """

    places: np.ndarray
    examples: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of a round; made by `make_cohort`.

    Attributes:
        client_ids: The clients' names.
        shards: The shards, which hold each client once.
        lost: Further clients, which keep what they have trained, but send nothing; or None.
    """

    client_ids: Sequence[str] | np.ndarray
    shards: Sequence[Shard]
    lost: Cohort | None = None

    def __post_init__(self):
        counts = collections.Counter(self.client_ids)
        for client, count in counts.items():
            # Where clients' local state is stored, a number would be found no more.
            if not isinstance(client, str):
                raise UserError(f"client {client!r} must be named by a str, not {type(client)}.")
            if count > 1:
                raise UserError(f"the cohort names client {client!r} {count} times, not once.")
        places = [place for shard in self.shards for place in shard.places if place >= 0]
        if sorted(places) != list(range(len(counts))):
            raise ValueError(f"shards must hold each of {len(counts)} clients once, not {places}.")

    def only(self, places: Sequence[int]) -> Cohort:
        """Returns the cohort, in its shapes, where some places' clients alone have examples."""

        def emptied(shard: Shard) -> Shard:
            chosen = np.isin(shard.places, places)
            if not isinstance(shard.examples, Mapping):  # One client's `tf.data.Dataset`.
                return shard if chosen.all() else shard._replace(examples=shard.examples.take(0))
            own = shard.examples

            def kept(array: np.ndarray) -> np.ndarray:
                zeros = np.full_like(array, "" if array.dtype == object else 0)
                return np.where(chosen.reshape(-1, *[1] * (array.ndim - 1)), array, zeros)

            features = collections.OrderedDict((n, kept(a)) for n, a in own["features"].items())
            changed = {
                "features": features,
                "labels": kept(own["labels"]),
                "mask": kept(own["mask"]),
            }
            return shard._replace(
                examples=collections.OrderedDict((k, changed.get(k, v)) for k, v in own.items())
            )

        return dataclasses.replace(self, shards=list(map(emptied, self.shards)), lost=None)

    @property
    def examples(self) -> list[Any]:
        """What a process of rebuilt local variables takes for the cohort."""
        return [shard.examples for shard in self.shards]

    def with_local_state(
        self, known: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> list[collections.OrderedDict]:
        """Returns what a process of kept local variables takes for the cohort.

        `known` is bool (cohort,), which clients have kept anything; values are (cohort, ...).
        """

        def with_own(shard: Shard) -> collections.OrderedDict:
            own = local_of(shard.places, known=known, values=values)
            return collections.OrderedDict(examples=shard.examples, local=own)

        return list(map(with_own, self.shards))


def make_cohort(
    model: PartitionedModel,
    dataset: ClientDataset,
    client_indices: Sequence[int] | np.ndarray,
    *,
    execution: Execution,
    touched_data: str = "all",
) -> Cohort:
    """Divides clients into shards of about equal work.

    Args:
        model: The partitioned model; `dataset` has its inputs among its features.
        dataset: All clients' examples.
        client_indices: The clients, as indices into `dataset`.
        execution: As of the process that is to take the cohort.
        touched_data: `Algorithm.touched_data`, which spares packed shards some rows of lookup
            tables; `all` suits every algorithm.

    Raises:
        UserError: If a client is named twice, or by anything but a str.
    """
    indices = np.asarray(client_indices, np.int64)
    if not execution.is_packed:
        datasets = client_datasets(model, dataset, indices, batch_size=execution.batch_size)
        shards = [Shard(np.array([place], np.int32), own) for place, own in enumerate(datasets)]
        return Cohort(dataset.client_ids[indices], shards)
    room, shards = execution.clients_per_shard, []
    by_size = np.argsort(-dataset.counts[indices], kind="stable")
    num_shards = max(1, math.ceil(len(indices) / room))
    for places in (by_size[shard::num_shards] for shard in range(num_shards)):
        examples = pack_clients(
            model,
            dataset,
            indices[places],
            clients_per_shard=room,
            batch_size=execution.batch_size,
            touched_data=touched_data,
        )
        padded = np.pad(places, (0, room - len(places)), constant_values=-1)
        shards.append(Shard(padded.astype(np.int32), examples))
    return Cohort(dataset.client_ids[indices], shards)


def shard_type(model: PartitionedModel, algorithm: Algorithm, execution: Execution) -> tff.Type:
    """Returns the TFF type of a shard's examples; of `OrderedDict(examples, local)` where kept."""
    room = execution.clients_per_shard
    if execution.is_packed:
        examples = packed_type(model, clients_per_shard=room, batch_size=execution.batch_size)
    else:
        examples = dataset_type(model)
    if not algorithm.keeps:
        return examples
    local = local_type(model, clients_per_shard=room)
    return tff.to_type(collections.OrderedDict(examples=examples, local=local))


def examples_of(model: PartitionedModel, execution: Execution, examples: Any) -> Examples:
    """Turns a shard's examples into `Examples`, inside a TFF computation."""
    if execution.is_packed:
        return as_examples(model, examples)
    return examples_from_dataset(model, examples)

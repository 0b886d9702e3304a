"""A cohort, divided into shards: the clients of one TFF CLIENTS member each."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal import runtime, tff
from fedpersonal.client.pooled import PACKINGS
from fedpersonal.client.values import Kept
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.shuffle import Shuffle
from fedpersonal.errors import UserError, check_choice, counted
from fedpersonal.federated.packing import pack_clients, packed_type
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel, Values

# How many clients whose update is not finite are named, after how many rounds at most.
_MOST = 3
_MOST_ROUNDS = 12  # Enough for one client among 4,096.


def default_num_shards() -> int:
    """Returns how many shards a cohort is divided into: one a processor of the runtime."""
    return runtime.num_processors()


@dataclasses.dataclass(frozen=True)
class Execution:
    """How a cohort is executed: in shards of one or many clients each.

    All give the same results up to floating point; more clients a shard are faster.

    Attributes:
        batch_size: Examples a batch.
        clients_per_shard: Clients that a shard has room for.
        packing: How a shard is packed. `stacked`: clients' weights are stacked and take their steps
            together, which suits models of many small operations. `pooled`: clients put their
            examples together where they share weights and take turns where not, which suits models
            bound by arithmetic.
        shuffle: What draws the orders in which clients take their examples, as of
            `Algorithm.shuffle`; None for the data's order.
    """

    batch_size: int
    clients_per_shard: int = 1
    packing: str = "stacked"
    shuffle: Shuffle | None = None

    def __post_init__(self):
        check_choice("Execution", "packing", self.packing, PACKINGS)
        for option in ("batch_size", "clients_per_shard"):
            value = getattr(self, option)
            if value < 1:
                raise UserError(f"Execution: {option} must be at least 1, not {value}.")

    @classmethod
    def for_cohorts(
        cls,
        clients: int,
        *,
        batch_size: int,
        packing: str = "stacked",
        shards: int | None = None,
        shuffle: Shuffle | None = None,
    ) -> Execution:
        """Returns the execution of cohorts of so many clients, in one shard a processor.

        Sums depend on the number of shards in their last digits.

        Args:
            clients: Clients of a cohort at most.
            batch_size: Examples a batch.
            packing: How a shard is packed: `stacked` or `pooled`.
            shards: Another number of shards; None for one a processor.
            shuffle: As of the class.
        """
        if clients < 1:
            raise UserError(f"Execution: a cohort must have at least 1 client, not {clients}.")
        shards = default_num_shards() if shards is None else shards
        if shards < 1:
            raise UserError(f"Execution: a cohort must have at least 1 shard, not {shards}.")
        clients_per_shard = math.ceil(clients / min(shards, clients))
        return cls(batch_size, clients_per_shard, packing, shuffle)


class Shard(NamedTuple):
    """The clients of one TFF CLIENTS member.

    Attributes:
        places: int32 (C,): which client of the cohort each is, -1 for none.
        examples: Theirs, the padded arrays of `pack_clients`.
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
        without_examples: The places of clients that have no example, and so train nothing.
    """

    client_ids: Sequence[str] | np.ndarray
    shards: Sequence[Shard]
    lost: Cohort | None = None
    without_examples: Collection[int] = ()

    def __post_init__(self):
        counts = collections.Counter(self.client_ids)
        for client, count in counts.items():
            # Where clients' local state is stored, a number would be found no more.
            if not isinstance(client, str):
                raise UserError(f"client {client!r} must be named by a str, not {type(client)}.")
            if count > 1:
                raise UserError(f"the cohort names client {client!r} {count} times, not once.")
        places = np.concatenate([np.zeros(0, int), *(shard.places for shard in self.shards)])
        places = places[places >= 0]
        if not np.array_equal(np.sort(places), np.arange(len(counts))):
            raise ValueError(f"shards must hold each of {len(counts)} clients once, not {places}.")

    def __repr__(self) -> str:
        clients = counted(len(self.client_ids), "clients")
        return f"<Cohort: {clients} in {counted(len(self.shards), 'shards')}>"

    def only(self, places: Sequence[int]) -> Cohort:
        """Returns the cohort, in its shapes, where some places' clients alone have examples."""

        def emptied(shard: Shard) -> Shard:
            chosen = np.isin(shard.places, places)
            order = np.argsort(~chosen, kind="stable")  # Clients without examples come last.
            own = tf.nest.map_structure(lambda array: array[order], shard.examples)
            chosen = chosen[order]

            def kept(array: np.ndarray) -> np.ndarray:
                zeros = np.full_like(array, "" if array.dtype == object else 0)
                return np.where(chosen.reshape(-1, *[1] * (array.ndim - 1)), array, zeros)

            features = collections.OrderedDict((n, kept(a)) for n, a in own["features"].items())
            changed = {
                "features": features,
                "labels": kept(own["labels"]),
                "mask": kept(own["mask"]),
            }
            return Shard(
                shard.places[order],
                collections.OrderedDict((k, changed.get(k, v)) for k, v in own.items()),
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
    steps_once: bool = False,
    round_number: int | None = None,
) -> Cohort:
    """Divides clients into shards of about equal work.

    Args:
        model: The partitioned model; `dataset` has its inputs among its features.
        dataset: All clients' examples.
        client_indices: The clients, as indices into `dataset`.
        execution: How the process that is to take the cohort executes it.
        touched_data: `Algorithm.touched_data`, which spares shards some rows of lookup tables;
            `all` suits every algorithm.
        steps_once: `steps_once_a_batch`, where the process adds up steps so: while nobody has more
            than a batch, no rows are looked for.
        round_number: The round, >= 0, by which clients' examples are shuffled; None where they are
            not.

    Raises:
        UserError: If a client is named twice, or by anything but a str; or examples are shuffled,
            and there is no round number.
    """
    if execution.shuffle is not None and round_number is None:
        raise UserError("make_cohort: give the round_number by which examples are shuffled.")
    indices = np.asarray(client_indices, np.int64)
    if steps_once and dataset.counts[indices].max(initial=0) <= execution.batch_size:
        touched_data = "none"
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
            shuffle=execution.shuffle,
            round_number=round_number or 0,
        )
        padded = np.pad(places, (0, room - len(places)), constant_values=-1)
        shards.append(Shard(padded.astype(np.int32), examples))
    empty = np.flatnonzero(dataset.counts[indices] == 0)
    return Cohort(dataset.client_ids[indices], shards, without_examples=empty.tolist())


def shard_type(model: PartitionedModel, algorithm: Algorithm, execution: Execution) -> tff.Type:
    """Returns the TFF type of a shard's examples; of `OrderedDict(examples, local)` where kept."""
    room = execution.clients_per_shard
    shuffle = execution.shuffle
    examples = packed_type(
        model,
        clients_per_shard=room,
        batch_size=execution.batch_size,
        num_passes=shuffle.num_passes if shuffle is not None and shuffle.is_each_pass else 0,
    )
    if not algorithm.keeps:
        return examples
    local = local_type(model, clients_per_shard=room)
    return tff.to_type(collections.OrderedDict(examples=examples, local=local))


def local_type(model: PartitionedModel, *, clients_per_shard: int) -> tff.StructWithPythonType:
    """Returns the TFF type of the local state of a shard's clients.

    Its fields: `places`, int32 (C,), which client of the cohort each is, -1 for none; `known`, bool
    (C,), whether it has kept anything; `values`, local variable's name to (C, ...).
    """
    room = clients_per_shard
    values = [
        (v.name, tff.TensorType(v.dtype.as_numpy_dtype, [room, *v.shape]))
        for v in model.local_variables
    ]
    fields = collections.OrderedDict(
        places=tff.TensorType(np.int32, [room]),
        known=tff.TensorType(np.bool_, [room]),
        values=collections.OrderedDict(values),
    )
    return tff.to_type(fields)


def local_of(
    places: np.ndarray, *, known: np.ndarray, values: Mapping[str, np.ndarray]
) -> collections.OrderedDict:
    """Chooses the local state of a shard's clients, of `local_type`, out of a whole cohort's.

    `places` is int32 (C,), -1 for none; `known` is bool (cohort,), values are (cohort, ...).
    """
    places = np.asarray(places, np.int32)
    is_client = places >= 0
    if not is_client.any():  # Of an empty cohort there is nothing to choose from.
        known = np.zeros(1, bool)
        values = {name: np.zeros((1, *v.shape[1:]), v.dtype) for name, v in values.items()}
    chosen = np.where(is_client, places, 0)
    # They may be megabytes a client, and in place already.
    in_place = np.array_equal(chosen, np.arange(len(known)))
    at: np.ndarray | slice = slice(None) if in_place else chosen
    return collections.OrderedDict(
        places=places,
        known=known[at] & is_client,
        values=collections.OrderedDict((name, column[at]) for name, column in values.items()),
    )


def as_kept(local: Mapping[str, Any]) -> Kept:
    """Turns a value of `local_type` into `Kept`, inside a TFF computation."""
    return Kept(local["known"], dict(local["values"]))


def kept_now(
    model: PartitionedModel, local: Mapping[str, Any], local_values: Values
) -> collections.OrderedDict:
    """Returns the value of `local_type` after a round, of what came in and what is kept now."""
    values = collections.OrderedDict(
        (v.name, tf.ensure_shape(local_values[v.name], local["values"][v.name].shape))
        for v in model.local_variables
    )
    known = tf.ones_like(local["known"])
    return collections.OrderedDict(places=local["places"], known=known, values=values)


def find_dropped(next_round: Callable[[Any, Cohort], Any], state: Any, cohort: Cohort) -> list[str]:
    """Returns the first clients, at most 3, of a cohort whose updates are not finite.

    The server knows only how many they are: the round is run again with ever fewer clients, at
    most 12 times; then the clients found so far are all.

    Args:
        next_round: Runs a round, without other effects.
        state: The state before it.
        cohort: Its clients, of whom at least one's update is not finite.
    """

    def has_any(places: Sequence[int]) -> bool:
        return bool(next_round(state, cohort.only(places)).metrics["num_dropped_updates"])

    dropped: list[str] = []
    waiting: list[tuple[Sequence[int], bool]] = [(range(len(cohort.client_ids)), True)]
    rounds = 0
    while waiting and len(dropped) < _MOST:
        places, is_known = waiting.pop()
        if is_known and len(places) == 1:
            dropped.append(str(cohort.client_ids[places[0]]))
            continue
        if rounds == _MOST_ROUNDS:
            break
        rounds += 1
        if not is_known:
            waiting += [(places, True)] if has_any(places) else []
            continue
        first, second = places[: len(places) // 2], places[len(places) // 2 :]
        # Where the first half has none, the second must have some.
        waiting += [(second, False), (first, True)] if has_any(first) else [(second, True)]
    return dropped

"""Cohorts and their shards: each TFF CLIENTS member has the clients of one shard."""

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
from fedpersonal.errors import UserError, check_choice, with_count
from fedpersonal.federated.packing import pack_clients, packed_type
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel, Values

# The most clients with a non-finite update to name, and the most rounds to search for them.
_MAX_NAMED = 3
_MAX_ROUNDS = 12  # Enough for one client among 4,096.


def default_num_shards() -> int:
    """Returns the default number of a cohort's shards: one per processor of the runtime."""
    return runtime.num_processors()


@dataclasses.dataclass(frozen=True)
class Execution:
    """How a cohort is executed: in shards of one or many clients each.

    Results do not depend on it, up to floating point. More clients per shard are faster.

    Attributes:
        batch_size: Examples per batch.
        clients_per_shard: The most clients of a shard.
        packing: How a shard is packed. `stacked`: clients' weights are stacked and take their steps
            at once, which is fast for models of many small operations. `pooled`: clients pool their
            examples in phases in which they share weights, and else take turns, which is fast for
            models bound by arithmetic.
        shuffle: The order in which clients take their examples, as returned by
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
        """Returns the execution of cohorts of up to `clients` clients.

        The last digits of sums depend on the number of shards.

        Args:
            clients: The most clients of a cohort.
            batch_size: Examples per batch.
            packing: How a shard is packed: `stacked` or `pooled`.
            shards: The number of shards; None for one per processor.
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
        places: int32 (C,): the clients' indices in the cohort, -1 for padding.
        examples: The clients' examples, padded arrays of `pack_clients`.
    """

    places: np.ndarray
    examples: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of a round; made by `make_cohort`.

    Attributes:
        client_ids: The clients' names.
        shards: The shards, which hold each client once.
        lost: More clients, which keep the local variables that they train but send nothing; or
            None.
        without_examples: The places of clients without examples, which train nothing.
    """

    client_ids: Sequence[str] | np.ndarray
    shards: Sequence[Shard]
    lost: Cohort | None = None
    without_examples: Collection[int] = ()

    def __post_init__(self):
        counts = collections.Counter(self.client_ids)
        for client, count in counts.items():
            # A store of clients' local state finds them by a str alone.
            if not isinstance(client, str):
                raise UserError(f"client {client!r} must be named by a str, not {type(client)}.")
            if count > 1:
                raise UserError(f"the cohort names client {client!r} {count} times, not once.")
        places = np.concatenate([np.zeros(0, int), *(shard.places for shard in self.shards)])
        places = places[places >= 0]
        if not np.array_equal(np.sort(places), np.arange(len(counts))):
            raise ValueError(f"shards must hold each of {len(counts)} clients once, not {places}.")

    def __repr__(self) -> str:
        clients = with_count(len(self.client_ids), "clients")
        return f"<Cohort: {clients} in {with_count(len(self.shards), 'shards')}>"

    def without_other_examples(self, places: Sequence[int]) -> Cohort:
        """Returns the cohort with empty examples of all clients except those at some places.

        Shapes stay the same.
        """

        def emptied(shard: Shard) -> Shard:
            chosen = np.isin(shard.places, places)
            order = np.argsort(~chosen, kind="stable")  # Clients without examples come last.
            packed = tf.nest.map_structure(lambda array: array[order], shard.examples)
            chosen = chosen[order]

            def keep_chosen(array: np.ndarray) -> np.ndarray:
                zeros = np.full_like(array, "" if array.dtype == object else 0)
                return np.where(chosen.reshape(-1, *[1] * (array.ndim - 1)), array, zeros)

            features = packed["features"].items()
            changed = {
                "features": collections.OrderedDict((n, keep_chosen(a)) for n, a in features),
                "labels": keep_chosen(packed["labels"]),
                "mask": keep_chosen(packed["mask"]),
            }
            return Shard(
                shard.places[order],
                collections.OrderedDict((k, changed.get(k, v)) for k, v in packed.items()),
            )

        return dataclasses.replace(self, shards=list(map(emptied, self.shards)), lost=None)

    @property
    def examples(self) -> list[Any]:
        """The cohort as an argument of a process without kept local variables."""
        return [shard.examples for shard in self.shards]

    def with_local_state(
        self, has_kept: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> list[collections.OrderedDict]:
        """Returns the cohort as an argument of a process with kept local variables.

        Args:
            has_kept: bool (cohort,): whether each client has kept local variables.
            values: Local variable's name to (cohort, ...).
        """

        def with_local(shard: Shard) -> collections.OrderedDict:
            local = select_local_state(shard.places, has_kept=has_kept, values=values)
            return collections.OrderedDict(examples=shard.examples, local=local)

        return list(map(with_local, self.shards))


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
        model: The partitioned model, whose inputs are among the features of `dataset`.
        dataset: All clients' examples.
        client_indices: The clients, as indices into `dataset`.
        execution: The execution of the process that takes the cohort.
        touched_data: `Algorithm.touched_data`, which saves shards rows of lookup tables; `all` is
            right for every algorithm.
        steps_once: Whether the process sums single steps (`steps_once_a_batch`): if no client has
            more than one batch, no touched rows are needed.
        round_number: The round, >= 0, by which clients' examples are shuffled; None if they are
            not.

    Raises:
        UserError: If a client is named twice, or not by a str; or examples are shuffled and there
            is no round number.
    """
    if execution.shuffle is not None and round_number is None:
        raise UserError("make_cohort: pass the round_number by which examples are shuffled.")
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
    """Returns the TFF type of a shard's examples.

    If clients keep local variables, it is the type of `OrderedDict(examples, local)`.
    """
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

    Its fields: `places`, int32 (C,), the clients' indices in the cohort, -1 for padding;
    `has_kept`, bool (C,), whether a client has kept local variables; `values`, local variable's
    name to (C, ...).
    """
    room = clients_per_shard
    values = [
        (v.name, tff.TensorType(v.dtype.as_numpy_dtype, [room, *v.shape]))
        for v in model.local_variables
    ]
    fields = collections.OrderedDict(
        places=tff.TensorType(np.int32, [room]),
        has_kept=tff.TensorType(np.bool_, [room]),
        values=collections.OrderedDict(values),
    )
    return tff.to_type(fields)


def select_local_state(
    places: np.ndarray, *, has_kept: np.ndarray, values: Mapping[str, np.ndarray]
) -> collections.OrderedDict:
    """Selects the local state of a shard's clients, of `local_type`, from a whole cohort's.

    `places` is int32 (C,), -1 for padding; `has_kept` is bool (cohort,); values are (cohort, ...).
    """
    places = np.asarray(places, np.int32)
    is_client = places >= 0
    if not is_client.any():  # An empty cohort has no values to select from.
        has_kept = np.zeros(1, bool)
        values = {name: np.zeros((1, *v.shape[1:]), v.dtype) for name, v in values.items()}
    chosen = np.where(is_client, places, 0)
    # Values may be megabytes per client; if they are in place already, nothing is copied.
    in_place = np.array_equal(chosen, np.arange(len(has_kept)))
    at: np.ndarray | slice = slice(None) if in_place else chosen
    return collections.OrderedDict(
        places=places,
        has_kept=has_kept[at] & is_client,
        values=collections.OrderedDict((name, column[at]) for name, column in values.items()),
    )


def as_kept(local: Mapping[str, Any]) -> Kept:
    """Turns a value of `local_type` into `Kept`, inside a TFF computation."""
    return Kept(local["has_kept"], dict(local["values"]))


def local_state_after(
    model: PartitionedModel, local: Mapping[str, Any], local_values: Values
) -> collections.OrderedDict:
    """Returns the value of `local_type` after a round, with new `local_values`."""
    values = collections.OrderedDict(
        (v.name, tf.ensure_shape(local_values[v.name], local["values"][v.name].shape))
        for v in model.local_variables
    )
    has_kept = tf.ones_like(local["has_kept"])
    return collections.OrderedDict(places=local["places"], has_kept=has_kept, values=values)


def find_dropped(next_round: Callable[[Any, Cohort], Any], state: Any, cohort: Cohort) -> list[str]:
    """Returns up to 3 clients of a cohort whose updates are not finite.

    The server gets their number alone, so the round is run again with ever fewer clients, at most
    12 times. After that, the search stops.

    Args:
        next_round: Runs a round, without other effects.
        state: The state before the round.
        cohort: The round's clients; the update of at least one is not finite.
    """

    def has_dropped(places: Sequence[int]) -> bool:
        return bool(
            next_round(state, cohort.without_other_examples(places)).metrics["num_dropped_updates"]
        )

    dropped: list[str] = []
    remaining: list[tuple[Sequence[int], bool]] = [(range(len(cohort.client_ids)), True)]
    rounds = 0
    while remaining and len(dropped) < _MAX_NAMED:
        places, is_certain = remaining.pop()
        if is_certain and len(places) == 1:
            dropped.append(str(cohort.client_ids[places[0]]))
            continue
        if rounds == _MAX_ROUNDS:
            break
        rounds += 1
        if not is_certain:
            remaining += [(places, True)] if has_dropped(places) else []
            continue
        first, second = places[: len(places) // 2], places[len(places) // 2 :]
        # If the first half has no such client, the second must have one.
        remaining += [(second, False), (first, True)] if has_dropped(first) else [(second, True)]
    return dropped

"""Evaluation of every client, before and after its model is personalised.

Reconstruction evaluation (Singhal et al., section 4.1, RECONEVAL) rebuilds the local variables of a
client from its support set, with the global ones frozen, and predicts its query set. Fine-tuning
also trains a personal copy of the global variables. Without phases, it is the paper's standard
evaluation: predictions with the variables as they are.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.client.batches import batch_metric_sums, predict_batch, take_batch
from fedpersonal.client.neighbours import make_predictor
from fedpersonal.client.optimizer import check_phases
from fedpersonal.client.pooled import PACKINGS, predict_in_turn
from fedpersonal.client.ridge import check_linear
from fedpersonal.client.rows import touched_tables
from fedpersonal.client.steps import run_phase
from fedpersonal.client.values import (
    ClientValues,
    Examples,
    starting_copies,
    starting_local_values,
    starting_values,
)
from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError, check_choice
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.federated.cohort import as_kept, local_type, select_local_state
from fedpersonal.federated.inlining import keras_computation
from fedpersonal.federated.packing import as_examples, bucket_size, pack_parts, packed_type
from fedpersonal.methods.algorithm import STARTS
from fedpersonal.methods.phases import Phase, RidgePhase
from fedpersonal.model.mixing import check_rows_are_independent
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.runtime.processors import count_processors

# Whether each client has kept local variables, bool (n,); and local variable's name to (n, ...),
# zeros for clients that have kept none.
Kept = tuple[np.ndarray, Mapping[str, np.ndarray]]
# Kept values are read in parts of this size, or of one shard for each processor if that is more.
_KEPT_BYTES = 2**28


def build_evaluation(
    model: PartitionedModel,
    phases: Sequence[Phase],
    support: ClientDataset,
    query: ClientDataset,
    *,
    batch_size: int,
    clients: int = 100,
    packing: str = "stacked",
    with_before: bool = True,
    with_kept: bool = False,
    with_predictions: bool = False,
    room: int = 0,
    seed: int = 0,
) -> Callable[..., ClientResults]:
    """Packs the clients once and returns a function that evaluates global variables on them.

    The function traces its TFF computations when it is first called.

    Args:
        model: The partitioned model.
        phases: The phases that personalise a client's model: `Algorithm.personalization`,
            fine-tuning, or none. They run on the support set as a whole.
        support: The clients' support sets.
        query: The clients' query sets, of the same clients.
        batch_size: The number of examples in a batch.
        clients: The number of clients in a shard.
        packing: How clients are packed: `stacked` or `pooled`, see `Execution`.
        with_before: Whether to predict before personalisation, too.
        with_kept: Whether personalisation starts from local variables that clients have kept. They
            are the function's second argument: whether each client has kept any, bool
            (num_clients,), and local variable's name to (num_clients, ...). Where they do not fit
            in memory, the argument may be a function from clients' places, int64 (n,), to the same
            for these clients; it is called for a few shards at a time.
        with_predictions: Whether `pooled` packing also returns predictions, which must then be one
            number for each example.
        room: The minimal number of clients that shards are built for. With the number of a larger
            set, this evaluation shares the trace of that set.
        seed: Seed of the local variables' initial values.

    Raises:
        ValueError: If a phase does not fit the model.
    """
    check_choice("build_evaluation", "packing", packing, PACKINGS)
    check_phases(model, phases)
    if any(isinstance(phase, RidgePhase) for phase in phases):
        check_linear(model.base)
    if packing == "pooled":
        for training in (False, True) if phases else (False,):
            check_rows_are_independent(model.base, training=training)
    # Rounded up, so that sets of similar size share a trace.
    clients = max(1, min(clients, bucket_size(max(support.num_clients, room))))
    # No client's examples fill larger batches. Rounded up, so that sets of similar size share a
    # trace.
    largest = max(int(part.counts.max(initial=1)) for part in (support, query))
    batch_size = min(batch_size, 2 ** math.ceil(math.log2(max(1, largest))))
    moves_globals = any(phase.variables not in ("local", "personal") for phase in phases)
    shards = pack_evaluation(
        model,
        support,
        query,
        clients=clients,
        batch_size=batch_size,
        query_batch_size=batch_size if packing == "pooled" else None,
        touched_data="all" if moves_globals or model.copies else "none",
    )

    shard_bytes = clients * sum(v.dtype.size * math.prod(v.shape) for v in model.local_variables)
    num_shards = max(count_processors(), _KEPT_BYTES // max(1, shard_bytes))
    computation = functools.cache(
        functools.partial(
            evaluation_computation,
            model,
            clients=clients,
            batch_size=batch_size,
            query_batch_size=batch_size if packing == "pooled" else None,
            packing=packing,
            seed=seed,
        )
    )

    def evaluate(
        weights: Mapping[str, np.ndarray],
        kept: Kept | Callable[[np.ndarray], Kept] | None = None,
    ) -> ClientResults:
        shared = collections.OrderedDict((v.name, weights[v.name]) for v in model.global_variables)
        personalised = computation(
            tuple(phases), with_kept=with_kept, with_predictions=with_predictions
        )
        if kept is None:
            after = personalised(shared, shards)
        else:
            after = []
            for start in range(0, len(shards), num_shards):
                part = [_with_local(shard, kept) for shard in shards[start : start + num_shards]]
                after += personalised(shared, part)
        before = after
        if not with_before:
            before = None
        elif phases or with_kept:
            before = computation(())(shared, shards)
        return _collect(model, before, after, query.client_ids)

    return evaluate


def _with_local(
    shard: Mapping[str, Any], kept: Kept | Callable[[np.ndarray], Kept]
) -> collections.OrderedDict:
    """Returns a shard with the local variables that its clients have kept."""
    places = shard["ids"]
    if callable(kept):
        # Clients come first, padding of the shard after them.
        clients = places[places >= 0].astype(np.int64)
        kept, places = kept(clients), np.where(places >= 0, np.arange(len(places)), -1)
        if len(kept[0]) != len(clients):
            raise ValueError(
                f"kept must return the variables of {len(clients)} clients, got {len(kept[0])}."
            )
    return collections.OrderedDict(
        shard, local=select_local_state(places, has_kept=kept[0], values=kept[1])
    )


def pack_evaluation(
    model: PartitionedModel,
    support: ClientDataset,
    query: ClientDataset,
    *,
    clients: int,
    batch_size: int,
    query_batch_size: int | None = None,
    touched_data: str = "none",
) -> list[collections.OrderedDict]:
    """Packs two data sets of the same clients into shards for an evaluation.

    `query_batch_size` is None for one batch with the whole query set, which stacked packing needs.
    `touched_data` is `all` where clients have personal copies of rows of global lookup tables, else
    `none`.
    """
    width = query_batch_size or max(1, int(query.counts.max(initial=1)))
    order = np.argsort(-support.counts, kind="stable")
    shards = []
    for chunk in (order[i : i + clients] for i in range(0, len(order), clients)):
        packed = pack_parts(
            model,
            (support, query),
            chunk,
            clients_per_shard=clients,
            batch_sizes=(batch_size, width),
            touched_data=touched_data,
        )
        ids = np.pad(chunk, (0, clients - len(chunk)), constant_values=-1).astype(np.int32)
        shards.append(collections.OrderedDict(ids=ids, support=packed[0], query=packed[1]))
    return shards


# Validation and test share a trace, and so do tests on more and more examples: tracing takes longer
# than running.
@functools.lru_cache(maxsize=4)
def evaluation_computation(
    model: PartitionedModel,
    phases: tuple[Phase, ...],
    *,
    clients: int,
    batch_size: int,
    query_batch_size: int | None,
    packing: str = "stacked",
    with_kept: bool = False,
    with_predictions: bool = False,
    seed: int = 0,
) -> tff.Computation:
    """Builds the TFF computation of global variables, at SERVER, and packed shards, at CLIENTS.

    It predicts once, after the phases. The arguments are those of `build_evaluation` and
    `pack_evaluation`.
    """
    # The support set is used as a whole.
    phases = tuple(dataclasses.replace(phase, data="all") for phase in phases)
    weights_type = tff.to_type(
        collections.OrderedDict(
            (v.name, (v.dtype.as_numpy_dtype, list(v.shape))) for v in model.global_variables
        )
    )
    fields = collections.OrderedDict(
        ids=(np.int32, [clients]),
        support=packed_type(model, clients_per_shard=clients, batch_size=batch_size),
        query=packed_type(model, clients_per_shard=clients, batch_size=query_batch_size),
    )
    if with_kept:
        fields["local"] = local_type(model, clients_per_shard=clients)
    shard_type = tff.to_type(fields)
    predict: Callable[..., Any] = _predict_stacked
    if packing == "pooled":
        predict = functools.partial(predict_in_turn, with_predictions=with_predictions)

    @keras_computation(weights_type, shard_type)
    def evaluate_shard(weights, shard):
        support, query = (as_examples(model, shard[part]) for part in ("support", "query"))
        local_seed, shared, local = tf.constant([seed, -1]), dict(weights), None
        if with_kept:
            kept = as_kept(shard["local"])
            local = starting_local_values(model, support, local_seed, kept)
            local.update(starting_copies(model, shared, support, kept))
        values = starting_values(model, shared, support, local_seed, local)
        values, (support, query) = touched_tables(model, phases, values, support, query)
        sums, predictions = predict(model, phases, values, support, query)
        output = collections.OrderedDict(
            ids=shard["ids"],
            num_examples=tf.reduce_sum(query.mask, [1, 2]),
            sums=collections.OrderedDict(sorted(sums.items())),
        )
        if predictions is not None:
            if packing == "pooled":  # The shape is (C, N, B).
                predictions = tf.reshape(predictions, [tf.shape(predictions)[0], -1])
            output["predictions"] = predictions
        return output

    @tff.federated_computation(
        tff.FederatedType(weights_type, tff.SERVER), tff.FederatedType(shard_type, tff.CLIENTS)
    )
    def evaluate(weights, shards):
        return tff.federated_map(evaluate_shard, (tff.federated_broadcast(weights), shards))

    return evaluate


def _predict_stacked(
    model: PartitionedModel,
    phases: Sequence[Phase],
    values: ClientValues,
    support: Examples,
    query: Examples,
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Predicts as `predict_in_turn` does, with stacked clients; predictions are (C, B, ...)."""
    for phase in phases:
        values = run_phase(model, phase, values, support)
    batch = take_batch(model, query, tf.zeros([tf.shape(query.mask)[0]], tf.int32), values)
    outcome = predict_batch(make_predictor(model, phases), values, batch, training=False)
    return batch_metric_sums(model, batch, outcome), outcome.predictions


def _collect(
    model: PartitionedModel,
    before: Sequence[Mapping[str, Any]] | None,
    after: Sequence[Mapping[str, Any]],
    client_ids: np.ndarray,
) -> ClientResults:
    """Puts the shards' outputs into the clients' order."""

    def joiner(outputs: Sequence[Mapping[str, Any]]) -> Callable[..., np.ndarray]:
        # Results may return in another order than the shards, so they carry their clients' ids.
        ids = np.concatenate([output["ids"] for output in outputs])
        order = np.argsort(ids, kind="stable")[(ids < 0).sum() :]
        return lambda parts: np.concatenate(parts)[order]

    def sums(outputs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        joined = joiner(outputs)
        return {
            name: joined([o["sums"][name] for o in outputs]).astype(np.float64)
            for name in outputs[0]["sums"]
        }

    joined = joiner(after)
    predictions = None
    if "predictions" in after[0]:
        # A shard's predictions are as wide as its longest query set.
        parts = [output["predictions"] for output in after]
        width = max(part.shape[1] for part in parts)
        rest = [(0, 0)] * (parts[0].ndim - 2)
        parts = [np.pad(part, [(0, 0), (0, width - part.shape[1]), *rest]) for part in parts]
        predictions = joined(parts)
    num_examples = joined([output["num_examples"] for output in after])
    return ClientResults(
        client_ids=client_ids,
        num_examples=num_examples.astype(np.float64),
        before=None if before is None else sums(before),
        after=sums(after),
        predictions=predictions,
        metrics=model.metrics,
    )


def evaluate_clients(
    model: PartitionedModel,
    phases: Sequence[Phase],
    weights: Mapping[str, np.ndarray],
    support: ClientDataset,
    query: ClientDataset,
    *,
    batch_size: int,
    clients: int = 100,
    seed: int = 0,
) -> ClientResults:
    """Builds an evaluation, packs the clients and evaluates them once.

    Args:
        model: The partitioned model.
        phases: The phases that personalise a client's model on its support set, or none.
        weights: Global variable's name to value.
        support: The clients' support sets.
        query: The clients' query sets, of the same clients.
        batch_size: The number of examples in a batch.
        clients: The number of clients in a shard.
        seed: Seed of the local variables' initial values.

    Raises:
        ValueError: If a phase does not fit the model.
    """
    return build_evaluation(
        model, phases, support, query, batch_size=batch_size, clients=clients, seed=seed
    )(weights)


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluator:
    """A model with the phases that clients run before they predict.

    A client that has kept local variables predicts with them, or rebuilds or updates them first.
    Any other client rebuilds local variables from its support set. Both then fine-tune a personal
    copy of the model, if there are phases for that.

    Attributes:
        model: The partitioned model.
        rebuilding: The phases that rebuild local variables of clients that have kept none.
        finetuning: The phases that train a client's copy on its support set before it predicts.
        batch_size: The number of examples in a client's batch.
        packing: How clients are packed for evaluation: `stacked` or `pooled`, see `Execution`.
        clients_per_shard: The number of clients in a shard; 0 for all in one shard.
        seed: Seed of local variables' initial values.
    """

    model: PartitionedModel
    rebuilding: tuple[Phase, ...]
    finetuning: tuple[Phase, ...]
    batch_size: int
    packing: str
    clients_per_shard: int
    seed: int

    def personalization(self, has_kept: bool, start: str = "kept") -> tuple[Phase, ...]:
        """Returns the phases that personalise the model of a client.

        Args:
            has_kept: Whether the client has kept local variables.
            start: How the client uses kept variables. `kept`: it predicts with them. `rebuilt`: it
                discards them and rebuilds local variables. `updated`: it takes the rebuilding steps
                from the kept values; a `RidgePhase` has no starting point and rebuilds. A client
                that has kept nothing always rebuilds.

        Raises:
            UserError: If `start` is none of these.
        """
        if start not in STARTS:
            raise UserError(f"start is {start!r}; it must be one of {', '.join(STARTS)}.")
        is_ready = has_kept and start == "kept"
        return self.finetuning if is_ready else (*self.rebuilding, *self.finetuning)

    def pack(
        self,
        support: ClientDataset,
        query: ClientDataset,
        phases: tuple[Phase, ...] | None = None,
        *,
        has_kept: bool,
        with_before: bool = True,
        with_predictions: bool = False,
        room: int = 0,
    ) -> Callable[..., ClientResults]:
        """Packs clients and returns a function that evaluates global variables on them.

        `phases` are None for `personalization`; the other arguments are those of
        `build_evaluation`.
        """
        return build_evaluation(
            self.model,
            self.personalization(has_kept) if phases is None else phases,
            support,
            query,
            batch_size=self.batch_size,
            clients=self.clients_per_shard or max(support.num_clients, room),
            packing=self.packing,
            with_before=with_before,
            with_kept=has_kept,
            with_predictions=with_predictions,
            room=room,
            seed=self.seed,
        )

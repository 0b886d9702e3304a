"""Training as a TFF process: broadcast, client work, aggregation, server update.

One builder makes it for local variables that are rebuilt in each round (Singhal et al., "Federated
Reconstruction", 2021) and for those that clients keep (Bui et al., "Federated User Representation
Learning", 2019, section 3.5). Local variables appear in no type that is broadcast or aggregated: a
client that keeps them brings them to CLIENTS and takes them from there.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.client.optimizer import check_phases
from fedpersonal.client.ridge import check_linear
from fedpersonal.client.states import check_slopes
from fedpersonal.client.values import Examples, starting_copies, starting_local_values
from fedpersonal.errors import UserError
from fedpersonal.federated.boundary import Folding
from fedpersonal.federated.cohort import Execution, as_kept, kept_now, shard_type
from fedpersonal.federated.inlining import keras_computation
from fedpersonal.federated.packing import as_examples, by_name
from fedpersonal.federated.privacy import DifferentialPrivacy, private_server
from fedpersonal.federated.server import Server, State, Weights, summing_server, train_and_sum
from fedpersonal.federated.states import StatefulServer, has_shares
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.phases import RidgePhase
from fedpersonal.model.lookups import check_lookups
from fedpersonal.model.mixing import check_rows_are_independent, find_mixing
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.variables import projections
from fedpersonal.optimizers import AnyOptimizer, ConstrainedServer, as_server_optimizer

if TYPE_CHECKING:
    from fedpersonal.federated.aggregators import Aggregator


class Output(NamedTuple):
    """What a round returns: the server's next state, and the cohort's training metrics by name."""

    state: State
    metrics: Any


class KeptOutput(NamedTuple):
    """What a round returns whose clients keep local variables.

    Attributes:
        state: The server's next state.
        metrics: The cohort's training metrics.
        local: At CLIENTS, for each shard, a value of `local_type`: what its clients keep now.
            Shards may come back in another order.
    """

    state: State
    metrics: Any
    local: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Process:
    """What trains a model: two TFF computations.

    Attributes:
        initialize: Returns the server's first state, a `State`.
        next: Maps a state and a cohort to an `Output`, or a `KeptOutput`.
        keeps: Whether clients bring and keep local variables: `Cohort.with_local_state`. Else they
            rebuild them in each round, or have none: `Cohort.examples`.
        folding: The types of what shards add up, where an aggregator does that; None for sums.
    """

    initialize: tff.Computation
    next: tff.Computation
    keeps: bool = False
    folding: Folding | None = None

    def get_model_weights(self, state: State) -> Weights:
        """Returns the global variables of a state."""
        return state.global_model_weights

    def set_model_weights(self, state: State, weights: Weights) -> State:
        """Returns a state with other global variables; TFF's `ModelWeights` will do."""
        trainable = collections.OrderedDict(weights.trainable)
        return state._replace(global_model_weights=Weights(trainable))


def build_process(
    model: PartitionedModel,
    algorithm: Algorithm,
    *,
    execution: Execution,
    server_optimizer: AnyOptimizer,
    aggregator: Aggregator | None = None,
    privacy: DifferentialPrivacy | None = None,
    num_clients: int | None = None,
    seed: int = 0,
    secret_seed: int | None = None,
) -> Process:
    """Builds the process that trains a model by an algorithm.

    It replaces `tff.learning.algorithms.build_fed_recon`, whose clients' datasets
    `clients_from_datasets` turns into what `make_cohort` takes.

    Args:
        model: The partitioned model.
        algorithm: What a client does.
        execution: How cohorts are executed.
        server_optimizer: What takes the mean of the clients' updates for a gradient, one of TFF's
            optimizers or of Keras', or a `ScheduledOptimizer`.
        aggregator: A factory of `tff.aggregators`, weighted or not; None for the weighted mean.
            Its work is done client by client, and takes longer than for the mean.
        privacy: What hides each client's part in the global variables; None for nothing.
        num_clients: The number of all clients that may take part, by which states of the server
            move: it is needed where there are any.
        seed: Seed of the global variables' initial values, of local ones in each round, and of
            seeded noise.
        secret_seed: What secret noise follows from; None without.

    Returns:
        The process, whose `next(state, cohort.examples)` returns an `Output`. Where clients keep
        their local variables, `next(state, cohort.with_local_state(...))` returns a `KeptOutput`;
        `Rounds` runs either.

    Raises:
        ValueError: If the model and the algorithm do not fit each other, or the aggregator
            or the privacy does not fit the algorithm.
    """
    check_fit(model, algorithm)
    sums_each = algorithm.weighting == "uniform" and algorithm.max_update_norm is None
    stepping = as_server_optimizer(server_optimizer)
    constraints = projections(model.global_variables)
    if constraints:
        stepping = ConstrainedServer(stepping, constraints)
    optimizer = StatefulServer(
        stepping,
        model,
        algorithm,
        num_clients=num_clients,
        # Of noisy sums anything may be made: a further sum would cost further noise.
        sums_updates=privacy is not None or (aggregator is None and sums_each),
    )
    if has_shares(model) and privacy is not None:
        raise UserError(
            f"{algorithm.name} divides by how many clients have chosen a model, which noise "
            "hides: with differential privacy, take mean_over='cohort'."
        )
    find_mixing(model.base, training=True)  # It refuses what nobody means.
    if execution.packing == "pooled":
        check_rows_are_independent(model.base, training=True)
    if privacy is not None:
        if aggregator is not None:
            raise UserError("differential privacy takes no aggregator: it is one.")
        server = private_server(
            model, algorithm, optimizer, privacy, seed=seed, secret_seed=secret_seed
        )
    elif aggregator is None:
        server = summing_server(model, optimizer, seed=seed)
    else:
        from fedpersonal.federated.aggregators import folding_server  # It takes TFF itself.

        server = folding_server(model, algorithm, optimizer, aggregator, seed=seed)
    work = _shard_work(model, algorithm, execution, server, seed)
    shards_type = tff.FederatedType(shard_type(model, algorithm, execution), tff.CLIENTS)

    @tff.federated_computation(server.initialize.type_signature.result, shards_type)
    def next_fn(state, shards):
        weights = tff.federated_broadcast(state.global_model_weights)
        round_number = tff.federated_broadcast(state.client_work)
        arguments = [weights, round_number, shards]
        if server.broadcast is not None:
            arguments.append(server.broadcast(state))
        results = tff.federated_map(work, tuple(arguments))
        if not algorithm.keeps:
            return Output(*server.finish(state, results))
        return KeptOutput(*server.finish(state, results["sent"]), results["local"])

    return Process(server.initialize, next_fn, algorithm.keeps, server.folding)


def check_fit(model: PartitionedModel, algorithm: Algorithm) -> None:
    """Raises a ValueError unless the algorithm moves variables that the model has."""
    if algorithm.local_variables == "none" and model.local_variables:
        raise ValueError(
            f"{algorithm.name} has no local variables; the model's local layers own "
            f"{[v.name for v in model.local_variables]}. Give it a model without local layers."
        )
    if algorithm.local_variables != "none" and not model.local_variables:
        raise ValueError(f"{algorithm.name} needs local variables; the model has none.")
    if bool(algorithm.personal) != bool(model.copies):
        raise ValueError(
            f"{algorithm.name} {'needs' if algorithm.personal else 'has no'} personal copies; "
            "take the model that its prepare(model) returns."
        )
    choice = algorithm.choice
    wanted = (choice.clusters, choice.mixes) if choice else (0, False)
    if wanted != (model.num_clusters, model.mixes):
        raise ValueError(
            f"{algorithm.name} {'needs' if algorithm.choice else 'has no'} clusters; take the "
            "model that its prepare(model) returns."
        )
    check_phases(model, algorithm.phases)
    check_slopes(model, algorithm)
    if any(isinstance(phase, RidgePhase) for phase in algorithm.phases):
        if model.mixes:
            raise ValueError(
                f"{algorithm.name}: a mixture of clusters is not linear; ridge needs it."
            )
        check_linear(model.base)
    check_lookups(model.base)


def _shard_work(
    model: PartitionedModel,
    algorithm: Algorithm,
    execution: Execution,
    server: Server,
    seed: int,
) -> tff.Computation:
    """Returns the computation of a shard's work, of the weights, the round's number and the shard.

    It returns what the shard sends; `OrderedDict(sent, local)` where clients keep variables.
    """
    data_type = shard_type(model, algorithm, execution)
    weights_type = server.state_type.global_model_weights
    further_types = [] if server.broadcast is None else [server.broadcast_type]

    def examples_in(shard: Any) -> Examples:
        return as_examples(model, shard["examples"] if algorithm.keeps else shard)

    def start(weights: Any, round_number: Any, shard: Any, *further: Any) -> Any:
        del weights, further
        kept = as_kept(shard["local"]) if algorithm.keeps else None
        round_seed = tf.stack([seed, round_number])
        return by_name(starting_local_values(model, examples_in(shard), round_seed, kept))

    # Random draws cannot be compiled with the rest.
    @keras_computation(weights_type, np.int32, data_type, *further_types, first=start)
    def work(local, weights, round_number, shard, *further):
        examples = examples_in(shard)
        values, round_seed = dict(weights.trainable), tf.stack([seed, round_number])
        kept = as_kept(shard["local"]) if algorithm.keeps else None
        local = {**local, **starting_copies(model, values, examples, kept)}
        of_round = algorithm.at_round(round_number)
        summary = server.summary(values, *(further or [None]))
        sent, after = train_and_sum(
            model,
            of_round,
            values,
            examples,
            round_seed,
            summary=summary,
            packing=execution.packing,
            local=local,
        )
        if not algorithm.keeps:
            return sent
        return collections.OrderedDict(sent=sent, local=kept_now(model, shard["local"], after))

    return work

"""Training as a TFF process: broadcast, client work, aggregation, server update.

One builder handles local variables that are rebuilt in each round (Singhal et al., "Federated
Reconstruction", 2021) and those that clients keep (Bui et al., "Federated User Representation
Learning", 2019, section 3.5). Local variables appear in no type that is broadcast or aggregated:
kept ones are part of the argument and of the result at CLIENTS.
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
from fedpersonal.federated.boundary import ReductionTypes
from fedpersonal.federated.cohort import Execution, as_kept, local_state_after, shard_type
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
from fedpersonal.optimizers import AnyOptimizer, ConstrainedOptimizer, as_server_optimizer

if TYPE_CHECKING:
    from fedpersonal.federated.aggregators import Aggregator


class Output(NamedTuple):
    """A round's result: the server's next state, and the cohort's training metrics by name."""

    state: State
    metrics: Any


class KeptOutput(NamedTuple):
    """The result of a round whose clients keep local variables.

    Attributes:
        state: The server's next state.
        metrics: The cohort's training metrics.
        local: At CLIENTS, for each shard, a value of `local_type`: its clients' new local
            variables. The order of shards may differ from the argument's.
    """

    state: State
    metrics: Any
    local: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Process:
    """Two TFF computations that train a model.

    Attributes:
        initialize: Returns the server's first state, a `State`.
        next: Maps a state and a cohort to an `Output`, or a `KeptOutput`.
        keeps: Whether clients keep local variables; a cohort is then passed as
            `Cohort.with_local_state`. Else they rebuild them in each round, or have none, and a
            cohort is passed as `Cohort.examples`.
        reduction_types: The types of an aggregator's reduction in shards; None if shards send sums.
    """

    initialize: tff.Computation
    next: tff.Computation
    keeps: bool = False
    reduction_types: ReductionTypes | None = None

    def get_model_weights(self, state: State) -> Weights:
        """Returns the global variables of a state."""
        return state.global_model_weights

    def set_model_weights(self, state: State, weights: Weights) -> State:
        """Returns a state with other global variables, `Weights` or TFF's `ModelWeights`."""
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

    It replaces `tff.learning.algorithms.build_fed_recon`; `clients_from_datasets` turns client
    datasets of the latter into an argument of `make_cohort`.

    Args:
        model: The partitioned model.
        algorithm: The clients' algorithm.
        execution: How cohorts are executed.
        server_optimizer: The optimizer to which the mean of the clients' updates is a gradient: a
            TFF or Keras optimizer, or a `ScheduledOptimizer`.
        aggregator: A factory of `tff.aggregators`, weighted or not; None for the weighted mean.
            It processes client by client, which takes longer than the mean.
        privacy: Differential privacy of clients' updates; None for none.
        num_clients: The number of all clients that may take part. Server states need it.
        seed: Seed of the global variables' initial values, of local ones in each round, and of
            seeded noise.
        secret_seed: The seed of secret noise; None without.

    Returns:
        The process, whose `next(state, cohort.examples)` returns an `Output`. If clients keep local
        variables, `next(state, cohort.with_local_state(...))` returns a `KeptOutput`. `Rounds` runs
        either.

    Raises:
        ValueError: If model and algorithm do not match, or the aggregator or the privacy does not
            match the algorithm.
    """
    check_fit(model, algorithm)
    sums_plain_updates = algorithm.weighting == "uniform" and algorithm.max_update_norm is None
    stepping = as_server_optimizer(server_optimizer)
    constraints = projections(model.global_variables)
    if constraints:
        stepping = ConstrainedOptimizer(stepping, constraints)
    optimizer = StatefulServer(
        stepping,
        model,
        algorithm,
        num_clients=num_clients,
        # The state may follow from noisy sums without further cost; another sum needs more noise.
        has_update_sums=privacy is not None or (aggregator is None and sums_plain_updates),
    )
    if has_shares(model) and privacy is not None:
        raise UserError(
            f"{algorithm.name} divides by the number of clients that chose a model, which noise "
            "hides: with differential privacy, use mean_over='cohort'."
        )
    find_mixing(model.base, training=True)  # Raises an error for unusable models.
    if execution.packing == "pooled":
        check_rows_are_independent(model.base, training=True)
    if privacy is not None:
        if aggregator is not None:
            raise UserError("differential privacy is an aggregator: pass no other one.")
        server = private_server(
            model, algorithm, optimizer, privacy, seed=seed, secret_seed=secret_seed
        )
    elif aggregator is None:
        server = summing_server(model, optimizer, seed=seed)
    else:
        from fedpersonal.federated.aggregators import aggregating_server  # Imports all of TFF.

        server = aggregating_server(model, algorithm, optimizer, aggregator, seed=seed)
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

    return Process(server.initialize, next_fn, algorithm.keeps, server.reduction_types)


def check_fit(model: PartitionedModel, algorithm: Algorithm) -> None:
    """Raises a ValueError unless the model has the variables that the algorithm moves."""
    if algorithm.local_variables == "none" and model.local_variables:
        raise ValueError(
            f"{algorithm.name} has no local variables; the model's local layers have "
            f"{[v.name for v in model.local_variables]}. Pass a model without local layers."
        )
    if algorithm.local_variables != "none" and not model.local_variables:
        raise ValueError(f"{algorithm.name} needs local variables; the model has none.")
    if bool(algorithm.personal) != bool(model.copies):
        raise ValueError(
            f"{algorithm.name} {'needs' if algorithm.personal else 'has no'} personal copies; "
            "use the model that its prepare(model) returns."
        )
    choice = algorithm.choice
    expected = (choice.clusters, choice.mixes) if choice else (0, False)
    if expected != (model.num_clusters, model.mixes):
        raise ValueError(
            f"{algorithm.name} {'needs' if algorithm.choice else 'has no'} clusters; use the "
            "model that its prepare(model) returns."
        )
    check_phases(model, algorithm.phases)
    check_slopes(model, algorithm)
    if any(isinstance(phase, RidgePhase) for phase in algorithm.phases):
        if model.mixes:
            raise ValueError(
                f"{algorithm.name}: ridge needs a linear model; a mixture of clusters is not."
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
    """Returns the computation of a shard's work.

    It maps the weights, the round's number, the shard and the server's other broadcast, if any, to
    the shard's reduction; to `OrderedDict(sent, local)` if clients keep local variables.
    """
    data_type = shard_type(model, algorithm, execution)
    weights_type = server.state_type.global_model_weights
    extra_types = [] if server.broadcast is None else [server.broadcast_type]

    def examples_in(shard: Any) -> Examples:
        return as_examples(model, shard["examples"] if algorithm.keeps else shard)

    def start(weights: Any, round_number: Any, shard: Any, *extra: Any) -> Any:
        del weights, extra
        kept = as_kept(shard["local"]) if algorithm.keeps else None
        round_seed = tf.stack([seed, round_number])
        return by_name(starting_local_values(model, examples_in(shard), round_seed, kept))

    # Random initial values cannot be compiled with the rest.
    @keras_computation(weights_type, np.int32, data_type, *extra_types, first=start)
    def work(local, weights, round_number, shard, *extra):
        examples = examples_in(shard)
        values, round_seed = dict(weights.trainable), tf.stack([seed, round_number])
        kept = as_kept(shard["local"]) if algorithm.keeps else None
        local = {**local, **starting_copies(model, values, examples, kept)}
        round_algorithm = algorithm.at_round(round_number)
        reduction = server.reduction(values, *(extra or [None]))
        sent, after = train_and_sum(
            model,
            round_algorithm,
            values,
            examples,
            round_seed,
            reduction=reduction,
            packing=execution.packing,
            local=local,
        )
        if not algorithm.keeps:
            return sent
        return collections.OrderedDict(
            sent=sent, local=local_state_after(model, shard["local"], after)
        )

    return work

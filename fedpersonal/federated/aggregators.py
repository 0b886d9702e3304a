"""Aggregation of clients' updates by any aggregator of TFF's.

`tff.backends.mapreduce` takes an aggregator apart: what the server tells clients (`prepare`), what
a client sends (`work`), how that is added up (`zero`, `accumulate`, `merge`), and what the server
makes of it (`report`, `update`). A shard does a client's part for each of its own.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, Union

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.client.steps import ClientOutput
from fedpersonal.client.values import Examples
from fedpersonal.errors import UserError
from fedpersonal.federated.boundary import Folding
from fedpersonal.federated.inlining import (
    Inlined,
    leaves,
    named_scalars,
    pack,
    replaced,
    with_containers,
)
from fedpersonal.federated.server import (
    Server,
    Summary,
    client_update,
    finalized_metrics,
    initial_weights,
    sum_metrics,
)
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel, Values

Aggregator = Union[tff.WeightedAggregationFactory, tff.UnweightedAggregationFactory]


class OwnedTablesFactory(tff.WeightedAggregationFactory):
    """Sums the updates of owned tables and hands all others to another factory.

    A mean over a cohort would divide a user's update of its own row by the size of the cohort; the
    sum leaves it whole, as in FedPer, where that row is kept on the client (Singhal et al.,
    section 5.2, footnote 4).
    """

    def __init__(self, shared: tff.WeightedAggregationFactory, owned: frozenset):
        """Takes the factory of the other variables and the names of the owned tables."""
        self._shared = shared
        self._owned = owned

    def create(self, value_type, weight_type) -> tff.AggregationProcess:
        """Creates the process for an OrderedDict of updates by variable name."""
        types = collections.OrderedDict(tff.iter_elements(value_type))
        names = [k for k in types if k not in self._owned]
        shared_type = tff.to_type(collections.OrderedDict((k, types[k]) for k in names))
        shared = self._shared.create(shared_type, weight_type)

        @tff.tf_computation(value_type, weight_type)
        def split(value, weight):
            # A client that was dropped has weight 0 and an update of 0.
            del weight
            parts = names, [k for k in types if k in self._owned]
            return tuple(collections.OrderedDict((k, value[k]) for k in part) for part in parts)

        @tff.tf_computation(shared_type, split.type_signature.result[1])
        def join(averaged, summed):
            return collections.OrderedDict(
                (k, tf.identity(summed[k] if k in self._owned else averaged[k])) for k in types
            )

        @tff.federated_computation(
            shared.initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            shared_value, owned_value = tff.federated_map(split, (value, weight))
            output = shared.next(state, shared_value, weight)
            summed = tff.federated_sum(owned_value)
            return tff.MeasuredProcessOutput(
                state=output.state,
                result=tff.federated_map(join, (output.result, summed)),
                measurements=output.measurements,
            )

        return tff.AggregationProcess(shared.initialize, next_fn)


def weighted_aggregation(
    model: PartitionedModel, algorithm: Algorithm, aggregator: Aggregator | None
) -> tff.WeightedAggregationFactory:
    """Returns what aggregates clients' updates by their weights: by default the weighted mean.

    Raises:
        UserError: If an unweighted aggregator meets an algorithm that weights clients, an
            aggregator needs secure sums, or one that bounds clients' influence meets owned tables.
    """
    if aggregator is None:
        aggregator = tff.MeanFactory(no_nan_division=True)
    if isinstance(aggregator, tff.UnweightedAggregationFactory):
        if algorithm.weighting != "uniform":
            raise UserError(
                f"aggregator {type(aggregator).__name__} ignores weights; the algorithm must then "
                f"have weighting='uniform', not {algorithm.weighting!r}."
            )
        is_private = isinstance(aggregator, tff.DifferentiallyPrivateFactory)
        if is_private and model.owned:
            raise UserError(
                f"each row of {sorted(model.owned)} belongs to one client and is summed beside the "
                f"aggregator: {type(aggregator).__name__} would not clip it."
            )
        aggregator = tff.as_weighted_aggregator(aggregator)
    return OwnedTablesFactory(aggregator, model.owned) if model.owned else aggregator


def create_aggregation(
    factory: tff.WeightedAggregationFactory, weights_type: tff.Type
) -> tff.AggregationProcess:
    """Creates the process that aggregates updates of the global variables.

    Raises:
        UserError: If it sums securely, which no runtime here can do.
    """
    aggregation = factory.create(weights_type, tff.TensorType(np.float32))
    secure: set[str] = set()

    def visit(block: tff.ComputationBuildingBlock) -> tuple[Any, bool]:
        if isinstance(block, tff.Intrinsic) and "secure" in block.uri:
            secure.add(block.uri)
        return block, False

    tff.transform_postorder(aggregation.next.to_building_block(), visit)
    if secure:
        raise UserError(
            f"the aggregator calls {', '.join(sorted(secure))}, which simulation has not; give one "
            "without secure sums, as the factories of tff.learning make with secure=False."
        )
    return aggregation


def folding_server(
    model: PartitionedModel,
    optimizer: tff.Optimizer,
    aggregator: tff.WeightedAggregationFactory,
    *,
    seed: int,
) -> Server:
    """Returns the server of shards that send what an aggregator makes of all their clients.

    Raises:
        UserError: If the aggregator cannot be taken apart.
    """
    first_weights = tff.tf_computation(lambda: initial_weights(model, seed))
    weights_type = first_weights.type_signature.result
    aggregation = create_aggregation(aggregator, weights_type.trainable)
    finalizer = tff.build_apply_optimizer_finalizer(optimizer, weights_type)
    add_one = tff.tf_computation(lambda n: n + 1, np.int32)
    form = _take_apart(aggregation, weights_type.trainable)
    told_type = with_containers(form.prepare.type_signature.result)
    folded_type = with_containers(form.zero.type_signature.result)
    work, zero, update = map(Inlined, (form.work, form.zero, form.update))
    accumulate, merge = map(Inlined, (form.accumulate, form.merge))

    @tff.federated_computation
    def initialize():
        weights = tff.federated_eval(first_weights, tff.SERVER)
        round_number = tff.federated_value(0, tff.SERVER)
        parts = (aggregation.initialize(), finalizer.initialize())
        return tff.federated_zip(tff.LearningAlgorithmState(weights, (), round_number, *parts))

    def tell(state: Any) -> Any:
        return tff.federated_broadcast(tff.federated_map(form.prepare, state.aggregator))

    def sent(folded: list[tf.Tensor], metrics: Any) -> collections.OrderedDict:
        return collections.OrderedDict(folded=pack(folded_type, iter(folded)), metrics=metrics)

    def summary(start: Values, told: Any) -> Summary:
        def of(examples: Examples, output: ClientOutput) -> collections.OrderedDict:
            def fold_client(client: tf.Tensor, *folded: tf.Tensor) -> tuple[tf.Tensor, ...]:
                own = client_update(model, start, examples.rows, output, client)
                made = work(*own.values(), output.weights[client], *leaves(told))
                return client + 1, *accumulate(*folded, *made)

            # Clients that fill up a shard come last.
            exists = examples.exists
            present = tf.reduce_sum(tf.cast(exists, tf.int32))
            _, *folded = tf.while_loop(
                lambda client, *_: client < present,
                fold_client,
                (0, *zero()),
                parallel_iterations=1,
            )
            return sent(folded, sum_metrics(output))

        def merged(one: Any, other: Any) -> collections.OrderedDict:
            folded = merge(*leaves(one["folded"]), *leaves(other["folded"]))
            return sent(folded, tf.nest.map_structure(tf.add, one["metrics"], other["metrics"]))

        return Summary(of, merged, lambda zeros: sent(zero(), zeros["metrics"]))

    def finish(state, parts):
        folded = tff.federated_aggregate(
            parts["folded"], form.zero(), form.merge, form.merge, form.report
        )
        sums = tff.federated_sum(parts["metrics"])

        @tff.tf_computation(
            state.aggregator.type_signature.member,
            folded.type_signature.member,
            sums.type_signature.member,
        )
        def aggregate(aggregator_state, folded, sums):
            results = iter(update(*leaves(aggregator_state), *leaves(folded)))
            count = len(leaves(aggregator_state))
            new_state = replaced(aggregator_state, [next(results) for _ in range(count)])
            made_type = form.update.type_signature.result[1]
            mean, measurements = pack(made_type, results)
            metrics = _with_measurements(model, sums, made_type[1], measurements)
            return new_state, collections.OrderedDict(mean), metrics

        aggregated = tff.federated_map(aggregate, (state.aggregator, folded, sums))
        finalized = finalizer.next(state.finalizer, state.global_model_weights, aggregated[1])
        round_number = tff.federated_map(add_one, state.client_work)
        new_state = tff.LearningAlgorithmState(
            finalized.result, (), round_number, aggregated[0], finalized.state
        )
        return tff.federated_zip(new_state), aggregated[2]

    # Of what `work` returns the rest is for secure sums.
    folding = Folding(form.zero.type_signature.result, form.work.type_signature.result[0])
    return Server(initialize, finish, summary, tell, told_type, folding)


def _take_apart(aggregation: tff.AggregationProcess, value_type: tff.Type) -> tff.MapReduceForm:
    state_type = aggregation.initialize.type_signature.result
    sent_type = tff.to_type(collections.OrderedDict(update=value_type, weight=np.float32))

    @tff.federated_computation(state_type, tff.FederatedType(sent_type, tff.CLIENTS))
    def one_round(state, sent):
        output = aggregation.next(state, sent["update"], sent["weight"])
        return output.state, tff.federated_zip((output.result, output.measurements))

    # Grappler lowers conditions in a way that XLA refuses.
    as_written = tf.compat.v1.ConfigProto()
    as_written.graph_options.rewrite_options.disable_meta_optimizer = True
    try:
        return tff.get_map_reduce_form_for_computation(one_round, grappler_config=as_written)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the aggregator cannot be taken apart: {reason}") from error


def _with_measurements(
    model: PartitionedModel, sums: Mapping[str, Any], measured_type: tff.Type, measurements: Any
) -> collections.OrderedDict:
    """Returns a cohort's training metrics, and among them what its aggregator measured."""
    metrics = finalized_metrics(model, sums)
    measured = named_scalars(measured_type, measurements)
    if measured:
        metrics["aggregator"] = measured
    return metrics

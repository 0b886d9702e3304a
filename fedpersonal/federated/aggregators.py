"""Aggregation of clients' updates by any TFF aggregator.

`tff.backends.mapreduce` splits an aggregator into the server's message to clients (`prepare`), a
client's work (`work`), the reduction of clients' results (`zero`, `accumulate`, `merge`), and the
server's update (`report`, `update`). A shard does the work and the reduction for each of its
clients.
"""

from __future__ import annotations

import collections
from typing import Any, Union

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.client.steps import ClientOutput
from fedpersonal.client.values import Examples
from fedpersonal.errors import UserError
from fedpersonal.federated.boundary import ReductionTypes
from fedpersonal.federated.inlining import (
    InlinedComputation,
    leaves,
    pack,
    replace_tensors,
    scalars_by_path,
    with_containers,
)
from fedpersonal.federated.server import (
    Averaging,
    Mean,
    Server,
    ShardReduction,
    State,
    client_update,
    sum_metrics,
    sum_updates,
    summing_server,
)
from fedpersonal.federated.states import StatefulServer, sum_states
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel, Values
from fedpersonal.tff import stock

Aggregator = Union[stock.WeightedAggregationFactory, stock.UnweightedAggregationFactory]


def _create_aggregation(
    model: PartitionedModel, algorithm: Algorithm, aggregator: Aggregator, value_type: tff.Type
) -> stock.AggregationProcess:
    """Creates the process that aggregates clients' updates by their weights."""
    if isinstance(aggregator, stock.UnweightedAggregationFactory):
        if algorithm.weighting != "uniform":
            raise UserError(
                f"aggregator {type(aggregator).__name__} ignores weights; the algorithm must then "
                f"have weighting='uniform', not {algorithm.weighting!r}."
            )
        if _is_private(aggregator) and model.server_rows_per_client:
            raise UserError(
                f"each row of {sorted(model.server_rows_per_client)} belongs to one client and is "
                f"summed outside of the aggregator: {type(aggregator).__name__} would not clip it."
            )
        aggregator = stock.as_weighted_aggregator(aggregator)
    aggregation = aggregator.create(value_type, tff.TensorType(np.float32))
    secure: set[str] = set()

    def visit(block: tff.ComputationBuildingBlock) -> tuple[Any, bool]:
        if isinstance(block, tff.Intrinsic) and "secure" in block.uri:
            secure.add(block.uri)
        return block, False

    tff.transform_postorder(aggregation.next.to_building_block(), visit)
    if secure:
        raise UserError(
            f"the aggregator calls {', '.join(sorted(secure))}, which simulations do not support; "
            "pass an aggregator without secure sums, such as factories of tff.learning make with "
            "secure=False."
        )
    return aggregation


def aggregating_server(
    model: PartitionedModel,
    algorithm: Algorithm,
    optimizer: StatefulServer,
    aggregator: Aggregator,
    *,
    seed: int,
) -> Server:
    """Returns the server for shards that reduce their clients' updates by an aggregator.

    Tables with a row per client are summed outside of the aggregator. A mean over a cohort would
    divide a client's update of its row by the size of the cohort; the sum leaves the update whole,
    as in FedPer, where that row is kept on the client (Singhal et al., section 5.2, footnote 4).

    Raises:
        UserError: If the aggregator cannot be split, ignores weights that the algorithm has, needs
            secure sums, which no runtime here supports, or bounds clients' influence on a model
            with a row per client.
    """
    aggregated, per_client = (
        [
            v
            for v in model.global_variables
            if (v.name in model.server_rows_per_client) is is_per_client and not v.is_state
        ]
        for is_per_client in (False, True)
    )
    is_private = _is_private(aggregator)
    if is_private and optimizer.sent_states:
        raise UserError(
            f"{algorithm.name} sends {', '.join(v.name for v in optimizer.sent_states)} outside of "
            f"the aggregator, so the private {type(aggregator).__name__} would not hide it; use "
            "fp.DifferentialPrivacy, or a method without server states."
        )
    fields = [(v.name, (np.float32, list(v.shape))) for v in aggregated]
    value_type = tff.to_type(collections.OrderedDict(fields))
    aggregation = _create_aggregation(model, algorithm, aggregator, value_type)
    form = _split_aggregation(aggregation, value_type)
    broadcast_type = with_containers(form.prepare.type_signature.result)
    reduced_type = with_containers(form.zero.type_signature.result)
    work, zero, update = map(InlinedComputation, (form.work, form.zero, form.update))
    accumulate, merge = map(InlinedComputation, (form.accumulate, form.merge))

    def broadcast(state: Any) -> Any:
        return tff.federated_broadcast(tff.federated_map(form.prepare, state.aggregator))

    def sent(reduced: list[tf.Tensor], sums: Any) -> collections.OrderedDict:
        return collections.OrderedDict(reduced=pack(reduced_type, iter(reduced)), sums=sums)

    def reduction(start: Values, received: Any) -> ShardReduction:
        def reduce(examples: Examples, output: ClientOutput) -> collections.OrderedDict:
            def reduce_client(client: tf.Tensor, *reduced: tf.Tensor) -> tuple[tf.Tensor, ...]:
                client_values = client_update(
                    model, aggregated, start, examples.rows, output, client
                )
                result = work(*client_values.values(), output.weights[client], *leaves(received))
                return client + 1, *accumulate(*reduced, *result)

            # Clients that pad a shard come last.
            exists = examples.exists
            present = tf.reduce_sum(tf.cast(exists, tf.int32))
            _, *reduced = tf.while_loop(
                lambda client, *_: client < present,
                reduce_client,
                (0, *zero()),
                parallel_iterations=1,
            )
            sums = collections.OrderedDict(
                owned=sum_updates(model, per_client, start, examples.rows, output),
                states=sum_states(optimizer.sent_states, output),
                metrics=sum_metrics(output),
            )
            if not is_private:
                sums["weight"] = tf.reduce_sum(output.weights)
            return sent(reduced, sums)

        def merged(one: Any, other: Any) -> collections.OrderedDict:
            reduced = merge(*leaves(one["reduced"]), *leaves(other["reduced"]))
            return sent(reduced, tf.nest.map_structure(tf.add, one["sums"], other["sums"]))

        return ShardReduction(reduce, merged, lambda zeros: sent(zero(), zeros["sums"]))

    def add_up(parts: Any) -> Any:
        reduced = tff.federated_aggregate(
            parts["reduced"], form.zero(), form.merge, form.merge, form.report
        )
        sums = tff.federated_sum(parts["sums"])
        names = [name for name, _ in tff.iter_elements(sums.type_signature.member)]
        return tff.federated_zip(
            collections.OrderedDict(reduced=reduced, **{name: sums[name] for name in names})
        )

    def average(state: Any, sums: Any, round_number: tf.Tensor) -> Mean:
        del round_number
        results = iter(update(*leaves(state), *leaves(sums["reduced"])))
        new_state = replace_tensors(state, [next(results) for _ in leaves(state)])
        result_type = form.update.type_signature.result[1]
        mean, measurements = pack(result_type, results)
        scalars = scalars_by_path(result_type[1], measurements)
        updates = {**mean, **sums["owned"]}
        ordered = collections.OrderedDict((name, updates[name]) for name in optimizer.weights)
        # An aggregator's mean of no clients may be undefined.
        finite = [tf.reduce_all(tf.math.is_finite(value)) for value in ordered.values()]
        has_updates = tf.reduce_all([*finite, True if is_private else sums["weight"] > 0])
        metrics = {"aggregator": scalars} if scalars else {}
        return Mean(ordered, new_state, metrics, sums["states"], {}, has_updates)

    averaging = Averaging((), average, add_up, skips_empty_rounds=True)
    server = summing_server(model, optimizer, seed=seed, averaging=averaging)

    @tff.federated_computation
    def initialize():
        first = server.initialize()
        parts = first.global_model_weights, first.client_work
        return tff.federated_zip(State(*parts, aggregation.initialize(), first.finalizer))

    # The other results of `work` are for secure sums.
    reduction_types = ReductionTypes(
        form.zero.type_signature.result, form.work.type_signature.result[0]
    )
    return Server(initialize, server.finish, reduction, broadcast, broadcast_type, reduction_types)


def _is_private(aggregator: Any) -> bool:
    """Returns whether an aggregator, or one that it calls, hides clients by noise."""
    factories = (stock.WeightedAggregationFactory, stock.UnweightedAggregationFactory)
    remaining, seen = [aggregator], set()
    while remaining:
        factory = remaining.pop()
        if isinstance(factory, stock.DifferentiallyPrivateFactory):
            return True
        if id(factory) in seen or not isinstance(factory, factories):
            continue
        seen.add(id(factory))
        # TFF's factories hold the factories that they call in attributes or in closures.
        cells = getattr(type(factory).create, "__closure__", None) or ()
        remaining += [
            *getattr(factory, "__dict__", {}).values(),
            *(cell.cell_contents for cell in cells),
        ]
    return False


def _split_aggregation(
    aggregation: stock.AggregationProcess, value_type: tff.Type
) -> stock.MapReduceForm:
    state_type = aggregation.initialize.type_signature.result
    sent_type = tff.to_type(collections.OrderedDict(update=value_type, weight=np.float32))

    @tff.federated_computation(state_type, tff.FederatedType(sent_type, tff.CLIENTS))
    def one_round(state, sent):
        output = aggregation.next(state, sent["update"], sent["weight"])
        return output.state, tff.federated_zip((output.result, output.measurements))

    # Grappler lowers conditions in a way that XLA does not support.
    no_rewriting = tf.compat.v1.ConfigProto()
    no_rewriting.graph_options.rewrite_options.disable_meta_optimizer = True
    try:
        return stock.get_map_reduce_form_for_computation(one_round, grappler_config=no_rewriting)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the aggregator cannot be split into map and reduce: {reason}") from error

"""Any aggregator of TFF's in packed execution: a shard folds its clients' updates one by one.

`tff.backends.mapreduce` takes an aggregator apart: what the server tells clients (`prepare`), what
a client sends (`work`), how that is added up (`zero`, `accumulate`, `merge`), and what the server
makes of it (`report`, `update`). A shard does a client's part for each of its own.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.client.stacked import ClientOutput
from fedpersonal.client.values import Examples
from fedpersonal.errors import UserError
from fedpersonal.model.partition import PartitionedModel, Values
from fedpersonal.process.inlining import (
    Inlined,
    leaves,
    pack,
    replaced,
    with_containers,
)
from fedpersonal.process.round_sums import Summary, client_update, sum_metrics
from fedpersonal.process.server import Server, aggregating_states, with_measurements


def folding_server(
    model: PartitionedModel,
    optimizer: tff.learning.optimizers.Optimizer,
    aggregator: tff.aggregators.WeightedAggregationFactory,
    *,
    seed: int,
) -> Server:
    """Returns the server of shards that send what an aggregator makes of all their clients.

    Raises:
        UserError: If the aggregator cannot be taken apart.
    """
    aggregation, weights_type, initialize, next_state = aggregating_states(
        model, optimizer, aggregator, seed=seed
    )
    form = _take_apart(aggregation, weights_type.trainable)
    told_type = with_containers(form.prepare.type_signature.result)
    folded_type = with_containers(form.zero.type_signature.result)
    work, zero, update = map(Inlined, (form.work, form.zero, form.update))
    accumulate, merge = map(Inlined, (form.accumulate, form.merge))

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

        @tff.tensorflow.computation(
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
            metrics = with_measurements(model, sums, made_type[1], measurements)
            return new_state, collections.OrderedDict(mean), metrics

        aggregated = tff.federated_map(aggregate, (state.aggregator, folded, sums))
        return next_state(state, aggregated[1], aggregated[0]), aggregated[2]

    return Server(initialize, finish, summary, tell, told_type)


def _take_apart(
    aggregation: tff.templates.AggregationProcess, value_type: tff.Type
) -> tff.backends.mapreduce.MapReduceForm:
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
        return tff.backends.mapreduce.get_map_reduce_form_for_computation(
            one_round, grappler_config=as_written
        )
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"packed execution cannot take the aggregator apart: {reason}") from error

"""Aggregation of clients' updates by any aggregator of TFF's.

`tff.backends.mapreduce` takes an aggregator apart: what the server tells clients (`prepare`), what
a client sends (`work`), how that is added up (`zero`, `accumulate`, `merge`), and what the server
makes of it (`report`, `update`). A shard does a client's part for each of its own.
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
    Averaging,
    Mean,
    Server,
    State,
    Summary,
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


def _aggregation_of(
    model: PartitionedModel, algorithm: Algorithm, aggregator: Aggregator, value_type: tff.Type
) -> stock.AggregationProcess:
    """Creates the process that aggregates clients' updates by their weights."""
    if isinstance(aggregator, stock.UnweightedAggregationFactory):
        if algorithm.weighting != "uniform":
            raise UserError(
                f"aggregator {type(aggregator).__name__} ignores weights; the algorithm must then "
                f"have weighting='uniform', not {algorithm.weighting!r}."
            )
        if _is_private(aggregator) and model.owned:
            raise UserError(
                f"each row of {sorted(model.owned)} belongs to one client and is summed beside the "
                f"aggregator: {type(aggregator).__name__} would not clip it."
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
            f"the aggregator calls {', '.join(sorted(secure))}, which simulation has not; give one "
            "without secure sums, as the factories of tff.learning make with secure=False."
        )
    return aggregation


def folding_server(
    model: PartitionedModel,
    algorithm: Algorithm,
    optimizer: StatefulServer,
    aggregator: Aggregator,
    *,
    seed: int,
) -> Server:
    """Returns the server of shards that send what an aggregator makes of all their clients.

    Owned tables are summed beside it: a mean over a cohort would divide a user's update of its own
    row by the size of the cohort; the sum leaves it whole, as in FedPer, where that row is kept on
    the client (Singhal et al., section 5.2, footnote 4).

    Raises:
        UserError: If the aggregator cannot be taken apart, is unweighted where the algorithm
            weights clients, needs secure sums, which no runtime here can do, or bounds clients'
            influence where there are owned tables.
    """
    shared, owned = (
        [
            v
            for v in model.global_variables
            if (v.name in model.owned) is is_owned and not v.is_state
        ]
        for is_owned in (False, True)
    )
    is_private = _is_private(aggregator)
    if is_private and optimizer.sent:
        raise UserError(
            f"{algorithm.name} sends {', '.join(v.name for v in optimizer.sent)} beside the "
            f"aggregator, and {type(aggregator).__name__}, which is private, would not hide it; "
            "take fp.DifferentialPrivacy, or a method without states of the server."
        )
    fields = [(v.name, (np.float32, list(v.shape))) for v in shared]
    value_type = tff.to_type(collections.OrderedDict(fields))
    aggregation = _aggregation_of(model, algorithm, aggregator, value_type)
    form = _take_apart(aggregation, value_type)
    broadcast_type = with_containers(form.prepare.type_signature.result)
    folded_type = with_containers(form.zero.type_signature.result)
    work, zero, update = map(Inlined, (form.work, form.zero, form.update))
    accumulate, merge = map(Inlined, (form.accumulate, form.merge))

    def broadcast(state: Any) -> Any:
        return tff.federated_broadcast(tff.federated_map(form.prepare, state.aggregator))

    def sent(folded: list[tf.Tensor], sums: Any) -> collections.OrderedDict:
        return collections.OrderedDict(folded=pack(folded_type, iter(folded)), sums=sums)

    def summary(start: Values, received: Any) -> Summary:
        def of(examples: Examples, output: ClientOutput) -> collections.OrderedDict:
            def fold_client(client: tf.Tensor, *folded: tf.Tensor) -> tuple[tf.Tensor, ...]:
                own = client_update(model, shared, start, examples.rows, output, client)
                made = work(*own.values(), output.weights[client], *leaves(received))
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
            sums = collections.OrderedDict(
                owned=sum_updates(model, owned, start, examples.rows, output),
                states=sum_states(optimizer.sent, output),
                metrics=sum_metrics(output),
            )
            if not is_private:
                sums["weight"] = tf.reduce_sum(output.weights)
            return sent(folded, sums)

        def merged(one: Any, other: Any) -> collections.OrderedDict:
            folded = merge(*leaves(one["folded"]), *leaves(other["folded"]))
            return sent(folded, tf.nest.map_structure(tf.add, one["sums"], other["sums"]))

        return Summary(of, merged, lambda zeros: sent(zero(), zeros["sums"]))

    def add_up(parts: Any) -> Any:
        folded = tff.federated_aggregate(
            parts["folded"], form.zero(), form.merge, form.merge, form.report
        )
        sums = tff.federated_sum(parts["sums"])
        names = [name for name, _ in tff.iter_elements(sums.type_signature.member)]
        return tff.federated_zip(
            collections.OrderedDict(folded=folded, **{name: sums[name] for name in names})
        )

    def average(state: Any, sums: Any, round_number: tf.Tensor) -> Mean:
        del round_number
        results = iter(update(*leaves(state), *leaves(sums["folded"])))
        new_state = replaced(state, [next(results) for _ in leaves(state)])
        made_type = form.update.type_signature.result[1]
        mean, measurements = pack(made_type, results)
        measured = named_scalars(made_type[1], measurements)
        every = {**mean, **sums["owned"]}
        ordered = collections.OrderedDict((name, every[name]) for name in optimizer.weights)
        # Of nobody an aggregator may make no mean.
        finite = [tf.reduce_all(tf.math.is_finite(value)) for value in ordered.values()]
        counts = tf.reduce_all([*finite, True if is_private else sums["weight"] > 0])
        metrics = {"aggregator": measured} if measured else {}
        return Mean(ordered, new_state, metrics, sums["states"], {}, counts)

    averaging = Averaging((), average, add_up, skips=True)
    server = summing_server(model, optimizer, seed=seed, averaging=averaging)

    @tff.federated_computation
    def initialize():
        first = server.initialize()
        parts = first.global_model_weights, first.client_work
        return tff.federated_zip(State(*parts, aggregation.initialize(), first.finalizer))

    # Of what `work` returns the rest is for secure sums.
    folding = Folding(form.zero.type_signature.result, form.work.type_signature.result[0])
    return Server(initialize, server.finish, summary, broadcast, broadcast_type, folding)


def _is_private(aggregator: Any) -> bool:
    """Tells whether an aggregator, or one that it calls, is to hide clients by noise."""
    factories = (stock.WeightedAggregationFactory, stock.UnweightedAggregationFactory)
    waiting, seen = [aggregator], set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, stock.DifferentiallyPrivateFactory):
            return True
        if id(one) in seen or not isinstance(one, factories):
            continue
        seen.add(id(one))
        # TFF's factories have those that they call as attributes, or their methods enclose them.
        cells = getattr(type(one).create, "__closure__", None) or ()
        waiting += [*getattr(one, "__dict__", {}).values(), *(cell.cell_contents for cell in cells)]
    return False


def _take_apart(aggregation: stock.AggregationProcess, value_type: tff.Type) -> stock.MapReduceForm:
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
        return stock.get_map_reduce_form_for_computation(one_round, grappler_config=as_written)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the aggregator cannot be taken apart: {reason}") from error

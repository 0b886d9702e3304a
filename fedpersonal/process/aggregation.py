"""Aggregation of clients' updates, also where a table's rows belong to one client each."""

from __future__ import annotations

import collections
from typing import Any, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm
from fedpersonal.errors import UserError
from fedpersonal.model.partition import PartitionedModel

Aggregator = Union[
    tff.aggregators.WeightedAggregationFactory, tff.aggregators.UnweightedAggregationFactory
]


class OwnedTablesFactory(tff.aggregators.WeightedAggregationFactory):
    """Sums the updates of owned tables and hands all others to another factory.

    A mean over a cohort would divide a user's update of its own row by the size of the cohort; the
    sum leaves it whole, as in FedPer, where that row is kept on the client (Singhal et al.,
    section 5.2, footnote 4).
    """

    def __init__(self, shared: tff.aggregators.WeightedAggregationFactory, owned: frozenset):
        """Takes the factory of the other variables and the names of the owned tables."""
        self._shared = shared
        self._owned = owned

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """Creates the process for an OrderedDict of updates by variable name."""
        types = collections.OrderedDict(tff.structure.iter_elements(value_type))
        names = [k for k in types if k not in self._owned]
        shared_type = tff.to_type(collections.OrderedDict((k, types[k]) for k in names))
        shared = self._shared.create(shared_type, weight_type)

        @tff.tensorflow.computation(value_type, weight_type)
        def split(value, weight):
            # A client that was dropped has weight 0 and an update of 0.
            del weight
            parts = names, [k for k in types if k in self._owned]
            return tuple(collections.OrderedDict((k, value[k]) for k in part) for part in parts)

        @tff.tensorflow.computation(shared_type, split.type_signature.result[1])
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
            return tff.templates.MeasuredProcessOutput(
                state=output.state,
                result=tff.federated_map(join, (output.result, summed)),
                measurements=output.measurements,
            )

        return tff.templates.AggregationProcess(shared.initialize, next_fn)


def weighted_aggregation(
    model: PartitionedModel, algorithm: Algorithm, aggregator: Aggregator | None
) -> tff.aggregators.WeightedAggregationFactory:
    """Returns what aggregates clients' updates by their weights: by default the weighted mean.

    Raises:
        UserError: If an unweighted aggregator meets an algorithm that weights clients, an
            aggregator needs secure sums, or one that bounds clients' influence meets owned tables.
    """
    if aggregator is None:
        aggregator = tff.aggregators.MeanFactory(no_nan_division=True)
    if isinstance(aggregator, tff.aggregators.UnweightedAggregationFactory):
        if algorithm.weighting != "uniform":
            raise UserError(
                f"aggregator {type(aggregator).__name__} ignores weights; the algorithm must then "
                f"have weighting='uniform', not {algorithm.weighting!r}."
            )
        is_private = isinstance(aggregator, tff.aggregators.DifferentiallyPrivateFactory)
        if is_private and model.owned:
            raise UserError(
                f"each row of {sorted(model.owned)} belongs to one client and is summed beside the "
                f"aggregator: {type(aggregator).__name__} would not clip it."
            )
        aggregator = tff.aggregators.as_weighted_aggregator(aggregator)
    return OwnedTablesFactory(aggregator, model.owned) if model.owned else aggregator


def create_aggregation(
    factory: tff.aggregators.WeightedAggregationFactory, weights_type: tff.Type
) -> tff.templates.AggregationProcess:
    """Creates the process that aggregates updates of the global variables.

    Raises:
        UserError: If it sums securely, which no runtime here can do.
    """
    aggregation = factory.create(weights_type, tff.TensorType(np.float32))
    secure: set[str] = set()

    def visit(block: tff.framework.ComputationBuildingBlock) -> tuple[Any, bool]:
        if isinstance(block, tff.framework.Intrinsic) and "secure" in block.uri:
            secure.add(block.uri)
        return block, False

    tff.framework.transform_postorder(aggregation.next.to_building_block(), visit)
    if secure:
        raise UserError(
            f"the aggregator calls {', '.join(sorted(secure))}, which simulation has not; give one "
            "without secure sums, as the factories of tff.learning make with secure=False."
        )
    return aggregation

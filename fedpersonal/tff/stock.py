"""The parts that exist only in TensorFlow Federated: runtime, aggregators, datasets."""

from __future__ import annotations

import importlib.util

from fedpersonal.errors import UserError

if not importlib.util.find_spec("tensorflow_federated"):
    raise UserError(
        "TensorFlow Federated is not installed here. Its runtime, its aggregators and its "
        "Stack Overflow data need it: Python 3.9 to 3.11 on Linux and x86-64."
    )

import tensorflow_federated as _tff

# Runtime.
create_sync_local_cpp_execution_context = (
    _tff.backends.native.create_sync_local_cpp_execution_context
)
replace_intrinsics_with_bodies = _tff.tensorflow.replace_intrinsics_with_bodies

# Aggregators.
AggregationProcess = _tff.templates.AggregationProcess
as_weighted_aggregator = _tff.aggregators.as_weighted_aggregator
DifferentiallyPrivateFactory = _tff.aggregators.DifferentiallyPrivateFactory
get_map_reduce_form_for_computation = _tff.backends.mapreduce.get_map_reduce_form_for_computation
MapReduceForm = _tff.backends.mapreduce.MapReduceForm
UnweightedAggregationFactory = _tff.aggregators.UnweightedAggregationFactory
WeightedAggregationFactory = _tff.aggregators.WeightedAggregationFactory

# Data.
ClientData = _tff.simulation.datasets.ClientData
stackoverflow = _tff.simulation.datasets.stackoverflow

"""All that the library takes from TensorFlow Federated (TFF), by name.

No other module imports TFF, so that a release which moves a name is met here.
"""

from __future__ import annotations

from typing import Any

import tensorflow_federated as _tff
from tensorflow_federated.proto.v0 import computation_pb2 as _computation_pb2

# Types and values.
CLIENTS = _tff.CLIENTS
FederatedType = _tff.FederatedType
flatten = _tff.structure.flatten
from_container = _tff.structure.from_container
FunctionType = _tff.FunctionType
iter_elements = _tff.structure.iter_elements
SequenceType = _tff.SequenceType
SERVER = _tff.SERVER
StructType = _tff.StructType
Structure = _tff.structure.Struct
StructWithPythonType = _tff.StructWithPythonType
TensorType = _tff.TensorType
to_type = _tff.to_type
Type = _tff.Type
type_to_py_container = _tff.types.type_to_py_container

# Federated computations.
Computation = _tff.Computation
federated_aggregate = _tff.federated_aggregate
federated_broadcast = _tff.federated_broadcast
federated_computation = _tff.federated_computation
federated_eval = _tff.federated_eval
federated_map = _tff.federated_map
federated_sum = _tff.federated_sum
federated_value = _tff.federated_value
federated_zip = _tff.federated_zip
tf_computation = _tff.tensorflow.computation

# Building blocks, of which computations are made.
Block = _tff.framework.Block
Call = _tff.framework.Call
CompiledComputation = _tff.framework.CompiledComputation
ComputationBuildingBlock = _tff.framework.ComputationBuildingBlock
ComputationProto = _computation_pb2.Computation
ConcreteComputation = _tff.framework.ConcreteComputation
Intrinsic = _tff.framework.Intrinsic
Lambda = _tff.framework.Lambda
Literal = _tff.framework.Literal
Reference = _tff.framework.Reference
Selection = _tff.framework.Selection
Struct = _tff.framework.Struct
to_call_dominant = _tff.framework.to_call_dominant
transform_postorder = _tff.framework.transform_postorder


def to_proto(block: Any) -> Any:
    """Returns the message that a building block is; later releases have a method for it."""
    return block.to_proto() if hasattr(block, "to_proto") else block.proto


# Contexts, in which they run.
create_sync_local_cpp_execution_context = (
    _tff.backends.native.create_sync_local_cpp_execution_context
)
get_context_stack = _tff.framework.get_context_stack
get_map_reduce_form_for_computation = _tff.backends.mapreduce.get_map_reduce_form_for_computation
MapReduceForm = _tff.backends.mapreduce.MapReduceForm
SyncContext = _tff.framework.SyncContext

# Processes, aggregators and optimizers.
AggregationProcess = _tff.templates.AggregationProcess
as_weighted_aggregator = _tff.aggregators.as_weighted_aggregator
build_sgdm = _tff.learning.optimizers.build_sgdm
ClientData = _tff.simulation.datasets.ClientData
DifferentiallyPrivateFactory = _tff.aggregators.DifferentiallyPrivateFactory
optimizers = _tff.learning.optimizers
replace_intrinsics_with_bodies = _tff.tensorflow.replace_intrinsics_with_bodies
stackoverflow = _tff.simulation.datasets.stackoverflow
UnweightedAggregationFactory = _tff.aggregators.UnweightedAggregationFactory
WeightedAggregationFactory = _tff.aggregators.WeightedAggregationFactory

"""The federated language: types, values, computations and building blocks, by name.

Up to release 0.87, TensorFlow Federated contains the language; later releases depend on the package
`federated-language`. No other module imports either, so only this module depends on where a release
has a name.
"""

from __future__ import annotations

import importlib.util
from typing import Any

STACKS = ("tff", "today")
_is_in_tff = False
if importlib.util.find_spec("tensorflow_federated"):
    import tensorflow_federated as _language

    _is_in_tff = hasattr(getattr(_language, "framework", None), "Block")

if _is_in_tff:
    from tensorflow_federated import framework as _framework
    from tensorflow_federated import structure as _structure
    from tensorflow_federated.proto.v0 import computation_pb2 as _messages
    from tensorflow_federated.python.core.impl.types import type_serialization

    Computation = _language.Computation
    type_to_py_container = _language.types.type_to_py_container
else:
    import federated_language as _language
    from federated_language import framework as _framework
    from federated_language.common_libs import structure as _structure
    from federated_language.proto import computation_pb2 as _messages

    Computation = _framework.Computation
    type_to_py_container = _framework.type_to_py_container

# The set of pinned packages that this program runs on.
STACK = STACKS[0] if _is_in_tff else STACKS[1]
VERSION = f"{_language.__name__.replace('_', '-')} {_language.__version__}"

# The whole package, for names that the library does not use.
PACKAGE = _language

# Types and values.
CLIENTS = _language.CLIENTS
FederatedType = _language.FederatedType
flatten = _structure.flatten
from_container = _structure.from_container
FunctionType = _language.FunctionType
iter_elements = _structure.iter_elements
SequenceType = _language.SequenceType
SERVER = _language.SERVER
StructType = _language.StructType
Structure = _structure.Struct
StructWithPythonType = _language.StructWithPythonType
TensorType = _language.TensorType
to_type = _language.to_type
Type = _language.Type

# Federated computations.
federated_aggregate = _language.federated_aggregate
federated_broadcast = _language.federated_broadcast
federated_computation = _language.federated_computation
federated_eval = _language.federated_eval
federated_map = _language.federated_map
federated_sum = _language.federated_sum
federated_value = _language.federated_value
federated_zip = _language.federated_zip

# Building blocks of computations, and their serialised messages.
Binding = _messages.TensorFlow.Binding
Block = _framework.Block
Call = _framework.Call
CompiledComputation = _framework.CompiledComputation
ComputationBuildingBlock = _framework.ComputationBuildingBlock
ComputationProto = _messages.Computation
Intrinsic = _framework.Intrinsic
Lambda = _framework.Lambda
Literal = _framework.Literal
Reference = _framework.Reference
Selection = _framework.Selection
Struct = _framework.Struct
TensorFlowProto = _messages.TensorFlow
transform_postorder = _framework.transform_postorder
unique_name_generator = _framework.unique_name_generator

# Contexts, which run computations.
get_context_stack = _framework.get_context_stack
SyncContext = _framework.SyncContext


def to_proto(block: Any) -> Any:
    """Serialises a building block or a type to a message."""
    if hasattr(block, "to_proto"):
        return block.to_proto()
    return type_serialization.serialize_type(block) if isinstance(block, Type) else block.proto


def computation_from_proto(message: Any, type_spec: Any) -> Any:
    """Returns the computation of a message and a type, which has the containers of its values."""
    return _framework.ConcreteComputation(
        computation_proto=message, context_stack=get_context_stack(), annotated_type=type_spec
    )

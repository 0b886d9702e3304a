"""What crosses the boundary between server and clients, read off a TFF computation.

Every broadcast and every aggregation of a TFF computation is an intrinsic call with a static type.
Walking a computation's building blocks therefore shows all that it can ever send, name by name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from fedpersonal.model.partition import PartitionedModel

_BROADCASTS = ("federated_broadcast", "federated_secure_select", "federated_select")
# Of these the value that clients send is the first of several arguments.
_VALUE_FIRST = (
    *("federated_aggregate", "federated_secure_modular_sum", "federated_secure_sum"),
    "federated_secure_sum_bitwidth",
)
_AGGREGATIONS = (
    *("federated_collect", "federated_mean", "federated_sum", "federated_weighted_mean"),
    *_VALUE_FIRST,
)


class LocalVariableError(ValueError):
    """A local variable is among what a computation broadcasts or aggregates."""


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A tensor that crosses the boundary.

    Attributes:
        direction: `broadcast` (server to client) or `aggregate` (client to server).
        name: Its path in the structure sent, ending in its variable's name where it is one.
        dtype: NumPy's name of its dtype.
        shape: Its shape; None where a dimension is not known before run time.
        num_bytes: Its size for one client, or None where its shape is not known.
    """

    direction: str
    name: str
    dtype: str
    shape: tuple[int | None, ...]
    num_bytes: int | None


def list_crossings(computation: tff.Computation) -> list[Crossing]:
    """Lists every tensor that a computation broadcasts or aggregates, in the order of its calls."""
    crossings: list[Crossing] = []

    def visit(block: Any) -> tuple[Any, bool]:
        called = block.function if isinstance(block, tff.framework.Call) else None
        uri = called.uri if isinstance(called, tff.framework.Intrinsic) else ""
        if uri in _BROADCASTS or uri in _AGGREGATIONS:
            sent = block.argument.type_signature
            direction = "broadcast" if uri in _BROADCASTS else "aggregate"
            crossings.extend(_leaves(direction, "", sent[0] if uri in _VALUE_FIRST else sent))
        return block, False

    tff.framework.transform_postorder(computation.to_building_block(), visit)
    return crossings


def check_boundary(
    model: PartitionedModel, computation: tff.Computation, *, declared: Collection[str] = ()
) -> list[Crossing]:
    """Lists the crossings of a computation and makes sure that no local variable is among them.

    Args:
        model: The partitioned model.
        computation: A process' `next`, or any other TFF computation.
        declared: Names of crossings that may be made of local variables, as what is clipped before
            it leaves a client.

    Raises:
        LocalVariableError: If a tensor sent has the name of a local variable.
    """
    crossings = list_crossings(computation)
    for crossing in crossings:
        for name in (v.name for v in model.local_variables):
            is_name = f".{crossing.name}".endswith(f".{name}")
            if is_name and crossing.name not in declared:
                raise LocalVariableError(
                    f"local variable {name!r} is sent ({crossing.direction}, as {crossing.name!r}, "
                    f"shape {crossing.shape}); only {[v.name for v in model.global_variables]} may."
                )
    return crossings


def total_bytes(crossings: Sequence[Crossing], direction: str) -> int:
    """Sums the bytes, for one client and round, of the crossings of one direction."""
    return sum(c.num_bytes or 0 for c in crossings if c.direction == direction)


def as_table(crossings: Sequence[Crossing]) -> list[dict[str, Any]]:
    """Returns the crossings as plain dictionaries, for JSON."""
    return [{**dataclasses.asdict(c), "shape": list(c.shape)} for c in crossings]


def _leaves(direction: str, path: str, type_spec: tff.Type) -> list[Crossing]:
    if isinstance(type_spec, tff.FederatedType):
        return _leaves(direction, path, type_spec.member)
    if isinstance(type_spec, tff.StructType):
        leaves = []
        for index, (name, element) in enumerate(tff.structure.iter_elements(type_spec)):
            inner = f"{path}." if path else ""
            leaves += _leaves(direction, inner + (name or str(index)), element)
        return leaves
    if isinstance(type_spec, tff.TensorType):
        shape = tuple(type_spec.shape or ())
        known = all(d is not None for d in shape)
        dtype = np.dtype(type_spec.dtype)
        num_bytes = math.prod(shape) * dtype.itemsize if known else None
        return [Crossing(direction, path, dtype.name, shape, num_bytes)]
    return [Crossing(direction, path, str(type_spec), (), None)]

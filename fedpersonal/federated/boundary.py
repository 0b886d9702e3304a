"""A list of the tensors that cross between server and clients, read from a TFF computation.

Values move between placements in intrinsics alone, and each intrinsic has a static type. The
building blocks of a computation therefore show every tensor that it can send, by name. The type of
an intrinsic decides, not its name: one with an argument at CLIENTS and a result at SERVER
aggregates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpersonal import tff
from fedpersonal.model.partition import PartitionedModel


class LocalVariableError(ValueError):
    """A computation broadcasts or aggregates a local variable."""


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A tensor that crosses the boundary.

    Attributes:
        direction: `broadcast` (server to client) or `aggregate` (client to server).
        name: Its path in the sent structure, which ends in its variable's name if it has one.
        dtype: NumPy's name of its dtype.
        shape: Its shape, with None for dimensions that only run time determines.
        num_bytes: Its size for one client, or None if that depends on values.
    """

    direction: str
    name: str
    dtype: str
    shape: tuple[int | None, ...]
    num_bytes: int | None


class ReductionTypes(NamedTuple):
    """The TFF types of an aggregator's reduction of clients' updates.

    Attributes:
        shard: The type of the reduction over a shard's clients, which the shard sends.
        client: The type of one client's contribution to it.
    """

    shard: tff.Type
    client: tff.Type


def list_crossings(computation: tff.Computation) -> list[Crossing]:
    """Lists every tensor that a computation broadcasts or aggregates, in the order of its calls."""
    intrinsics: list[tuple[tff.Type, tff.Intrinsic]] = []
    called: set[int] = set()

    def visit(block: Any) -> tuple[Any, bool]:
        if isinstance(block, tff.Call):
            if isinstance(block.function, tff.Intrinsic):
                called.add(id(block.function))
                intrinsics.append((block.argument.type_signature, block.function))
        return block, False

    def visit_uncalled(block: Any) -> tuple[Any, bool]:
        # An intrinsic may be bound to a name and called by it.
        if isinstance(block, tff.Intrinsic) and id(block) not in called:
            intrinsics.append((block.type_signature.parameter, block))
        return block, False

    root = computation.to_building_block()
    tff.transform_postorder(root, visit)
    tff.transform_postorder(root, visit_uncalled)
    parts = [
        part
        for argument, intrinsic in intrinsics
        for part in sent_parts(argument, intrinsic.type_signature)
    ]
    return [crossing for part in parts for crossing in crossings_of(part)]


class SentPart(NamedTuple):
    """A part of an intrinsic's argument that crosses the boundary.

    Attributes:
        direction: `broadcast` or `aggregate`.
        name: Its path in the argument, by names.
        place: Its path in the argument, by indices.
        type_spec: Its type, without a placement.
    """

    direction: str
    name: str
    place: tuple[int, ...]
    type_spec: tff.Type


def sent_parts(argument: tff.Type, intrinsic: tff.FunctionType) -> list[SentPart]:
    """Lists the parts of an argument that an intrinsic sends, by their types.

    A part at CLIENTS is sent if the result, or another part of the argument, is at SERVER; and the
    other way round. An argument without a placement is sent if the result is at CLIENTS.
    """
    parts, results = _placed_parts(argument), _placed_parts(intrinsic.result)
    directions = [direction for direction, *_ in parts]
    ends = {*directions, *(direction for direction, *_ in results)}
    if not parts and ends == {"aggregate"} and not isinstance(argument, tff.FunctionType):
        return [SentPart("broadcast", "", (), argument)]
    if len(ends) < 2:
        return []
    return [p._replace(name="") if directions.count(p.direction) == 1 else p for p in parts]


def crossings_of(part: SentPart) -> list[Crossing]:
    """Lists the tensors of a part."""
    return _leaves(part.direction, part.name, part.type_spec)


def _placed_parts(
    type_spec: tff.Type, name: str = "", place: tuple[int, ...] = ()
) -> list[SentPart]:
    """Returns the parts of a type that are at CLIENTS (`aggregate`) or at SERVER (`broadcast`)."""
    if isinstance(type_spec, tff.FederatedType):
        direction = "aggregate" if type_spec.placement is tff.CLIENTS else "broadcast"
        return [SentPart(direction, name, place, type_spec.member)]
    if not isinstance(type_spec, tff.StructType):
        return []
    parts = []
    for index, (key, element) in enumerate(tff.iter_elements(type_spec)):
        parts += _placed_parts(element, _join(name, key or str(index)), (*place, index))
    return parts


def check_boundary(
    model: PartitionedModel,
    computation: tff.Computation,
    *,
    declared: Collection[str] = (),
    reduction_types: ReductionTypes | None = None,
) -> list[Crossing]:
    """Lists the crossings of a computation and checks that no local variable is among them.

    Args:
        model: The partitioned model.
        computation: A process' `next`, or any other TFF computation.
        declared: Names of crossings that may derive from local variables, such as values that are
            clipped before they leave a client.
        reduction_types: The types of an aggregator's reduction, if shards send one; the list then
            has one client's contribution to it, which may be smaller. None if shards send sums.

    Raises:
        LocalVariableError: If a sent tensor has the name of a local variable.
    """
    crossings = list_crossings(computation)
    if reduction_types is not None:
        of_shard, of_client = (_leaves("aggregate", "", spec) for spec in reduction_types)
        starts = range(len(crossings) - len(of_shard) + 1)
        at = next(i for i in starts if crossings[i : i + len(of_shard)] == of_shard)
        crossings[at : at + len(of_shard)] = of_client
    for crossing in crossings:
        for name in (v.name for v in model.local_variables):
            is_name = f".{crossing.name}".endswith(f".{name}")
            if is_name and crossing.name not in declared:
                raise LocalVariableError(
                    f"local variable {name!r} is sent ({crossing.direction}, as {crossing.name!r}, "
                    f"shape {crossing.shape}); only {[v.name for v in model.global_variables]} may."
                )
    return crossings


def total_bytes(crossings: Sequence[Crossing], direction: str) -> int | None:
    """Sums one direction's bytes, for one client and round; None if a size depends on values."""
    sizes = [c.num_bytes for c in crossings if c.direction == direction]
    return None if None in sizes else sum(size or 0 for size in sizes)


def bytes_per_client(crossings: Sequence[Crossing]) -> dict[str, int | None]:
    """Returns both directions' `total_bytes`, by their keys in files."""
    return {
        "broadcast_bytes_per_client": total_bytes(crossings, "broadcast"),
        "aggregated_bytes_per_client": total_bytes(crossings, "aggregate"),
    }


def as_table(crossings: Sequence[Crossing]) -> list[dict[str, Any]]:
    """Returns the crossings as plain dictionaries, for JSON."""
    return [{**dataclasses.asdict(c), "shape": list(c.shape)} for c in crossings]


def _leaves(direction: str, path: str, type_spec: tff.Type) -> list[Crossing]:
    if isinstance(type_spec, tff.StructType):
        leaves = []
        for index, (name, element) in enumerate(tff.iter_elements(type_spec)):
            leaves += _leaves(direction, _join(path, name or str(index)), element)
        return leaves
    if isinstance(type_spec, tff.TensorType):
        shape = tuple(type_spec.shape or ())
        dtype = np.dtype(type_spec.dtype)
        has_size = all(d is not None for d in shape) and dtype.itemsize  # Strings have none.
        num_bytes = math.prod(shape) * dtype.itemsize if has_size else None
        return [Crossing(direction, path, dtype.name, shape, num_bytes)]
    return [Crossing(direction, path, str(type_spec), (), None)]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

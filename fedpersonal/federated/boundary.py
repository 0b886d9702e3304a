"""What crosses the boundary between server and clients, read off a TFF computation.

Values move between placements in intrinsics alone, and each has a static type. Walking a
computation's building blocks therefore shows all that it can ever send, name by name. What counts
is the type: an intrinsic that makes something at SERVER of something at CLIENTS aggregates,
whatever it is called.
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
    """A local variable is among what a computation broadcasts or aggregates."""


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A tensor that crosses the boundary.

    Attributes:
        direction: `broadcast` (server to client) or `aggregate` (client to server).
        name: Its path in the structure sent, ending in its variable's name where it is one.
        dtype: NumPy's name of its dtype.
        shape: Its shape; None where a dimension is not known before run time.
        num_bytes: Its size for one client, or None where that depends on values.
    """

    direction: str
    name: str
    dtype: str
    shape: tuple[int | None, ...]
    num_bytes: int | None


class Folding(NamedTuple):
    """The types of what an aggregator makes of clients' updates.

    Attributes:
        shard: What a shard has added up of its clients, and sends.
        client: What it adds up of one client.
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
        # It may be called under another name.
        if isinstance(block, tff.Intrinsic) and id(block) not in called:
            intrinsics.append((block.type_signature.parameter, block))
        return block, False

    root = computation.to_building_block()
    tff.transform_postorder(root, visit)
    tff.transform_postorder(root, visit_uncalled)
    parts = [
        part for argument, made in intrinsics for part in sent_parts(argument, made.type_signature)
    ]
    return [crossing for part in parts for crossing in crossings_of(part)]


class SentPart(NamedTuple):
    """A part of an intrinsic's argument that crosses.

    Attributes:
        direction: `broadcast` or `aggregate`.
        name: Its path in the argument, by names.
        place: The same by indices.
        type_spec: Its type, without a placement.
    """

    direction: str
    name: str
    place: tuple[int, ...]
    type_spec: tff.Type


def sent_parts(argument: tff.Type, intrinsic: tff.FunctionType) -> list[SentPart]:
    """Lists what an intrinsic of this type, called with an argument of that type, sends.

    All that comes from CLIENTS is sent if the result, or another part of the argument, is at
    SERVER; and the other way round. What has no placement is sent where it is put at CLIENTS.
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
    for index, (own, element) in enumerate(tff.iter_elements(type_spec)):
        parts += _placed_parts(element, _join(name, own or str(index)), (*place, index))
    return parts


def check_boundary(
    model: PartitionedModel,
    computation: tff.Computation,
    *,
    declared: Collection[str] = (),
    folding: Folding | None = None,
) -> list[Crossing]:
    """Lists the crossings of a computation and makes sure that no local variable is among them.

    Args:
        model: The partitioned model.
        computation: A process' `next`, or any other TFF computation.
        declared: Names of crossings that may be made of local variables, as what is clipped before
            it leaves a client.
        folding: Where shards send what an aggregator adds up, its types: what is listed is then
            what one client adds, which may be smaller.

    Raises:
        LocalVariableError: If a tensor sent has the name of a local variable.
    """
    crossings = list_crossings(computation)
    if folding is not None:
        added, sent = (_leaves("aggregate", "", type_spec) for type_spec in folding)
        starts = range(len(crossings) - len(added) + 1)
        at = next(i for i in starts if crossings[i : i + len(added)] == added)
        crossings[at : at + len(added)] = sent
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
    """Sums the bytes, for one client and round, of one direction; None if one is not known."""
    known = [c.num_bytes for c in crossings if c.direction == direction]
    return None if None in known else sum(size or 0 for size in known)


def bytes_per_client(crossings: Sequence[Crossing]) -> dict[str, int | None]:
    """Returns both directions' `total_bytes`, by the names that files give them."""
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
        known = all(d is not None for d in shape) and dtype.itemsize  # Strings have none.
        num_bytes = math.prod(shape) * dtype.itemsize if known else None
        return [Crossing(direction, path, dtype.name, shape, num_bytes)]
    return [Crossing(direction, path, str(type_spec), (), None)]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

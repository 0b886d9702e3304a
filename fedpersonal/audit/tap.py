"""A TFF computation that also returns all that crosses between server and clients."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.computation.computation_impl import ConcreteComputation

from fedpersonal.process.boundary import Crossing, crossings_of, sent_parts


class Traffic(NamedTuple):
    """What crossed in a call.

    Attributes:
        members: For each member of CLIENTS, or for the server alone, the value of each of
            `Tap.crossings`.
        result: What the computation returns, or None.
    """

    members: list[list[np.ndarray]]
    result: Any


class Tap:
    """Runs a computation and tells what it broadcasts, or what each member sends.

    The values are the arguments of the intrinsics themselves, of the computation as it runs; what
    is not asked for is not computed.

    Attributes:
        crossings: What crosses in that direction.
    """

    def __init__(self, computation: tff.Computation, direction: str, *, with_result: bool = False):
        """Takes a computation that has arguments, and `broadcast` or `aggregate`."""
        root = tff.framework.to_call_dominant(computation.to_building_block())
        assert isinstance(root, tff.framework.Lambda)
        body = root.result
        calls = body.locals if isinstance(body, tff.framework.Block) else []
        self.crossings: list[Crossing] = []
        tapped: list[tff.framework.ComputationBuildingBlock] = []
        for _, call in calls:
            intrinsic = call.function if isinstance(call, tff.framework.Call) else None
            if isinstance(intrinsic, tff.framework.Intrinsic):
                argument = call.argument
                for part in sent_parts(argument.type_signature, intrinsic.type_signature):
                    if part.direction == direction:
                        self.crossings += crossings_of(part)
                        tapped.append(functools.reduce(_select, part.place, argument))
        self._with_result = with_result
        wanted = ([body.result] if isinstance(body, tff.framework.Block) else [body]) * with_result
        result = tff.framework.Struct([*wanted, *tapped])
        block = tff.framework.Lambda(
            root.parameter_name, root.parameter_type, tff.framework.Block(calls, result)
        )
        # A building block has lost the Python types of its argument and its result.
        own_type = computation.type_signature
        results = [*[own_type.result] * with_result, *(part.type_signature for part in tapped)]
        self._computation = ConcreteComputation.with_type(
            ConcreteComputation.from_building_block(block),
            tff.FunctionType(own_type.parameter, tff.to_type(tuple(results))),
        )

    def __call__(self, *arguments: Any) -> Traffic:
        """Runs the computation."""
        if not self.crossings and not self._with_result:
            return Traffic([[]], None)
        found = list(self._computation(*arguments))
        result = found.pop(0) if self._with_result else None
        # What is the same for all members comes as one value.
        columns = [value if isinstance(value, list) else [value] for value in found]
        count = max(map(len, columns), default=0)
        members = zip(*(column * (count // len(column)) for column in columns))
        return Traffic(
            [[t for value in member for t in _flat(value)] for member in members], result
        )


def _flat(value: Any) -> list[np.ndarray]:
    struct = tff.structure.from_container((value,), recursive=True)
    return [np.asarray(tensor) for tensor in tff.structure.flatten(struct)]


def _select(
    block: tff.framework.ComputationBuildingBlock, index: int
) -> tff.framework.ComputationBuildingBlock:
    if isinstance(block, tff.framework.Struct):
        return block[index]
    return tff.framework.Selection(block, index=index)

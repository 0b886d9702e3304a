"""How many parameters a round moves, read off what crosses a training process' boundary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.boundary import Crossing


@dataclasses.dataclass(frozen=True)
class Communication:
    """What one client receives and sends in a round; metrics and counters are left out.

    Attributes:
        broadcast_parameters: Numbers of model variables that it receives.
        aggregated_parameters: Numbers of model variables that it sends.
        num_bytes: The bytes of both.
        formula: The same in the terms of the paper, for local and global variables l and g.
    """

    broadcast_parameters: int
    aggregated_parameters: int
    num_bytes: int
    formula: str

    @property
    def parameters(self) -> int:
        """Both directions together."""
        return self.broadcast_parameters + self.aggregated_parameters


def measure_communication(
    model: PartitionedModel, crossings: Sequence[Crossing], *, local_layer: str
) -> Communication:
    """Sums the crossings that are variables.

    Args:
        model: The model that trains.
        crossings: What its process broadcasts and aggregates.
        local_layer: The layer that is l, whether or not this process keeps it local.
    """
    variables = {v.name: v for v in model.variables}
    sent: dict[str, list[tuple[str, int, int]]] = {"broadcast": [], "aggregate": []}
    for crossing in crossings:
        name = crossing.name.rpartition(".")[2]
        if name in variables:
            size = math.prod(crossing.shape)
            sent[crossing.direction].append((name, size, crossing.num_bytes))
    every = [part for parts in sent.values() for part in parts]
    has_local = any(variables[name].layer == local_layer for name, _, _ in every)
    return Communication(
        broadcast_parameters=sum(size for _, size, _ in sent["broadcast"]),
        aggregated_parameters=sum(size for _, size, _ in sent["aggregate"]),
        num_bytes=sum(num_bytes for _, _, num_bytes in every),
        formula="2|l| + 2|g|" if has_local else "2|g|",
    )

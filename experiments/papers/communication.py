"""How many parameters a round moves, read off what has crossed a run's boundary."""

from __future__ import annotations

import dataclasses
import math

from fedpersonal.simulation.model_file import read_model
from fedpersonal.simulation.run_record import RunRecord


@dataclasses.dataclass(frozen=True)
class Communication:
    """What one client receives and sends in a round; metrics and counters are left out.

    Attributes:
        parameters: Numbers of model variables that it receives and sends, together.
        num_bytes: Their bytes.
        formula: The same in the terms of the paper, for local and global variables l and g.
    """

    parameters: int
    num_bytes: int
    formula: str


def measure_communication(record: RunRecord, *, local_layer: str) -> Communication:
    """Sums the crossings that are variables.

    Args:
        record: A run that has ended.
        local_layer: The layer that is l, whether or not this run keeps it local.
    """
    variables = read_model(record.path).weights
    sent = [c for c in record.boundary if c["name"].rpartition(".")[2] in variables]
    has_local = any(name.split("/")[0] == local_layer for name in variables)
    return Communication(
        parameters=sum(math.prod(crossing["shape"]) for crossing in sent),
        num_bytes=sum(crossing["num_bytes"] for crossing in sent),
        formula="2|l| + 2|g|" if has_local else "2|g|",
    )

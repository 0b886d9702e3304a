"""A check, before a round of a large model begins, that it fits in memory."""

from __future__ import annotations

import contextlib
import math
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil

from fedpersonal.errors import UserError

if TYPE_CHECKING:
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.model.variables import VariableSpec

# Files with a container's limit, its usage, and the reclaimable file cache of its usage.
_CONTAINER = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
_CGROUP = pathlib.Path("/sys/fs/cgroup")
# The fewest whole copies of the global variables that a round holds: the state before and after it
# and the sum; and for each shard its argument and its result.
_COPIES = 3
_COPIES_PER_SHARD = 2


def check_memory(model: PartitionedModel, num_shards: int, *, clients: int = 0) -> None:
    """Raises a UserError if a round in `num_shards` shards needs more memory than is free.

    `clients` is the number of a round's clients that have personal copies.
    """
    size = _size(model.global_variables)
    local_size = clients * _size(model.local_variables) if clients else 0
    needed = _count_copies(num_shards) * size + _COPIES_PER_SHARD * local_size
    free = free_bytes()
    if needed > free:
        copies = f", {clients} clients' copies {_mb(local_size)}," if local_size else ""
        raise UserError(
            f"a round needs at least {_mb(needed)}, as the model's global variables have "
            f"{_mb(size)}{copies} and there are {num_shards} shards; {_mb(free)} are free. Use "
            "fewer shards or clients, or smaller or fewer embeddings."
        )


def largest_model_bytes(free: int, num_shards: int) -> int:
    """Returns the largest size of global variables for which rounds fit into `free` bytes."""
    return free // _count_copies(num_shards)


def free_bytes() -> int:
    """Returns the bytes of memory that the system, or the container's limit, leaves."""
    free = psutil.virtual_memory().available
    for names in _CONTAINER:
        with contextlib.suppress(OSError, ValueError):  # There is no limit, or it is "max".
            limit, used, stat = (_CGROUP.joinpath(name).read_text() for name in names)
            files = dict(line.split() for line in stat.splitlines()).get("inactive_file", 0)
            free = min(free, max(0, int(limit) - int(used) + int(files)))
    return free


def _size(variables: Sequence[VariableSpec]) -> int:
    return sum(v.dtype.size * math.prod(v.shape) for v in variables)


def _count_copies(num_shards: int) -> int:
    return _COPIES + _COPIES_PER_SHARD * num_shards


def _mb(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"

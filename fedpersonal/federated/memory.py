"""Whether a round of large models fits in memory, checked before it begins."""

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

# A container's limit, what it uses of it, and how much of that are files that it can let go.
_CONTAINER = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
_CGROUP = pathlib.Path("/sys/fs/cgroup")
# Whole copies of the global variables that a round holds at least: the state before and after it
# and the sum; and of each shard its argument and what it sends.
_COPIES = 3
_COPIES_A_SHARD = 2


def check_memory(model: PartitionedModel, num_shards: int, *, clients: int = 0) -> None:
    """Raises a UserError if a round in so many shards needs more memory than is free.

    `clients` are those of a round that have personal copies.
    """
    size = _size(model.global_variables)
    own = clients * _size(model.local_variables) if clients else 0
    needed, free = _copies(num_shards) * size + _COPIES_A_SHARD * own, free_bytes()
    if needed > free:
        copies = f", {clients} clients' copies {_mb(own)}," if own else ""
        raise UserError(
            f"a round needs at least {_mb(needed)}, as the model's global variables have "
            f"{_mb(size)}{copies} and there are {num_shards} shards; {_mb(free)} are free. Take "
            "fewer shards or clients, smaller embeddings or fewer of them."
        )


def largest_model_bytes(free: int, num_shards: int) -> int:
    """Returns how many bytes of global variables rounds in so many shards have room for."""
    return free // _copies(num_shards)


def free_bytes() -> int:
    """Returns how much memory the system, or the container's limit, leaves."""
    free = psutil.virtual_memory().available
    for names in _CONTAINER:
        with contextlib.suppress(OSError, ValueError):  # There is none, or it is "max".
            limit, used, stat = (_CGROUP.joinpath(name).read_text() for name in names)
            files = dict(line.split() for line in stat.splitlines()).get("inactive_file", 0)
            free = min(free, max(0, int(limit) - int(used) + int(files)))
    return free


def _size(variables: Sequence[VariableSpec]) -> int:
    return sum(v.dtype.size * math.prod(v.shape) for v in variables)


def _copies(num_shards: int) -> int:
    return _COPIES + _COPIES_A_SHARD * num_shards


def _mb(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"

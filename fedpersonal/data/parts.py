"""The parts of a client's data: which of its batches a phase works on.

These are FedRecon's dataset split functions S (Singhal et al., Algorithm 1), by batches. All take
plain numbers, NumPy arrays or tensors.
"""

from __future__ import annotations

from typing import Any

SUPPORT_PARTS = ("support", "first_half")
QUERY_PARTS = ("query", "second_half")
# Of a dataset split function: the part that is the support set, and the one that is the query set.
SPLITS = {
    "skip": ("support", "query"),
    "aggregated": ("first_half", "second_half"),
    "shared": ("all", "all"),
}
PARTS = (*SUPPORT_PARTS, *QUERY_PARTS, "all")


def count_batches(part: str, num_batches: Any) -> Any:
    """Returns how many of a client's batches are in a part; an odd one out is in the support set.

    Args:
        part: `support` (batches 0, 2, 4...), `query` (1, 3, 5...), `first_half`, `second_half`, or
            `all`.
        num_batches: Batches that the client has.
    """
    if part == "all":
        return num_batches
    return (num_batches + 1) // 2 if part in SUPPORT_PARTS else num_batches // 2


def find_batch(part: str, place: Any, num_batches: Any) -> Any:
    """Returns the index, among the client's batches, of batch `place` of a part."""
    if part in ("all", "first_half"):
        return place
    if part == "second_half":
        return place + (num_batches + 1) // 2
    return 2 * place + int(part == "query")


def is_in_part(part: str, index: Any, num_batches: Any) -> Any:
    """Tells whether the client's batch of this index is in a part."""
    if part == "all":
        return index >= 0
    if part in ("support", "query"):
        return index % 2 == int(part == "query")
    half = (num_batches + 1) // 2
    return index < half if part == "first_half" else index >= half

"""The parts of a client's data: which of its batches a phase works on.

These are FedRecon's dataset split functions S (Singhal et al., Algorithm 1), by batches. All take
plain numbers, NumPy arrays or tensors. Where the support set has another share of the batches than
half, the names of parts end with it: `support 1/3`.
"""

from __future__ import annotations

import fractions
import re
from typing import Any

from fedpersonal.errors import check_choice

SUPPORT_PARTS = ("support", "first_half")
QUERY_PARTS = ("query", "second_half")
# Of a dataset split function: the part that is the support set, and the one that is the query set.
SPLITS = {
    "skip": ("support", "query"),
    "aggregated": ("first_half", "second_half"),
    "shared": ("all", "all"),
}
PARTS = (*SUPPORT_PARTS, *QUERY_PARTS, "all")


def split_parts(split: str, support_share: float = 0.5) -> tuple[str, str]:
    """Returns the parts that are the support set and the query set of a dataset split function.

    Args:
        split: One of `SPLITS`. `skip` deals batches out evenly, from the first one, which supports;
            `aggregated` takes the first ones as the support set; `shared` takes all for both.
        support_share: Share of the batches in the support set, to 1 %; `shared` has none.

    Raises:
        ValueError: If there is no such split, or the share is not between 0 and 1.
    """
    check_choice("split_parts", "split", split, tuple(SPLITS))
    share = fractions.Fraction(support_share).limit_denominator(100)
    if not 0 < share < 1:
        raise ValueError(f"support_share must be between 0.01 and 0.99, not {support_share}.")
    support, query = SPLITS[split]
    suffix = "" if split == "shared" or share == fractions.Fraction(1, 2) else f" {share}"
    return f"{support}{suffix}", f"{query}{suffix}"


def check_part(owner: str, part: str) -> None:
    """Raises a ValueError unless `part` is one of `PARTS`, or what `split_parts` makes of one."""
    name, _, share = part.partition(" ")
    is_share = re.fullmatch(r"[1-9]\d?/[1-9]\d{0,2}", share) and 0 < fractions.Fraction(share) < 1
    check_choice(owner, "data", name if is_share and name != "all" else part, PARTS)


def is_query(part: str) -> bool:
    """Tells whether a part is the query set of a client that has a support set beside it."""
    return part.partition(" ")[0] in QUERY_PARTS


def count_batches(part: str, num_batches: Any) -> Any:
    """Returns how many of a client's batches are in a part; what is left over supports.

    Args:
        part: `support` (batches 0, 2, 4...), `query` (1, 3, 5...), `first_half`, `second_half`,
            `all`, or one of `split_parts`.
        num_batches: Batches that the client has.
    """
    if part == "all":
        return num_batches
    name, a, b = _parsed(part)
    support = (a * num_batches + b - 1) // b
    return support if name in SUPPORT_PARTS else num_batches - support


def find_batch(part: str, place: Any, num_batches: Any) -> Any:
    """Returns the index, among the client's batches, of batch `place` of a part."""
    name, a, b = _parsed(part)
    if name in ("all", "first_half"):
        return place
    if name == "second_half":
        return place + (a * num_batches + b - 1) // b
    return b * place // a if name == "support" else (b * place + b - 1) // (b - a)


def is_in_part(part: str, index: Any, num_batches: Any) -> Any:
    """Tells whether the client's batch of this index is in a part."""
    name, a, b = _parsed(part)
    if name == "all":
        return index >= 0
    if name in ("support", "query"):
        place = (a * index - 1) % b
        return place >= b - a if name == "support" else place < b - a
    first = (a * num_batches + b - 1) // b
    return index < first if name == "first_half" else index >= first


def _parsed(part: str) -> tuple[str, int, int]:
    """Returns the name of a part, and the support set's share as a fraction."""
    name, _, share = part.partition(" ")
    a, b = map(int, (share or "1/2").split("/"))
    return name, a, b

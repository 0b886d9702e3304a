"""What an audit has found, for people and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from fedpersonal.audit.inherent import Inherent
from fedpersonal.process.boundary import Crossing, as_table, bytes_per_client, total_bytes

_MOST_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a check has come to.

    Attributes:
        check: Its name.
        asks: What should hold, in a sentence.
        found: What does not, a sentence each.
    """

    check: str
    asks: str
    found: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.found


@dataclasses.dataclass(frozen=True)
class Audit:
    """What an audit has found.

    Attributes:
        crossings: What is broadcast and aggregated.
        verdicts: What its checks have come to.
        inherent: What honest updates tell.
        notes: What else is to be known.
        guarantee: What is guaranteed if all checks hold, in a sentence.
    """

    crossings: Sequence[Crossing]
    verdicts: Sequence[Verdict]
    inherent: Sequence[Inherent]
    notes: Sequence[str]
    guarantee: str

    @property
    def holds(self) -> bool:
        """Whether no check has found a leak."""
        return all(verdict.holds for verdict in self.verdicts)

    @property
    def found(self) -> list[str]:
        """All leaks, a sentence each."""
        return [leak for verdict in self.verdicts for leak in verdict.found]

    @property
    def promise(self) -> str:
        """The guarantee, which counts on what the checks look for."""
        return self.guarantee if self.holds else "guarantee: none, since a check has found a leak"

    def as_json(self) -> dict[str, Any]:
        """Returns the audit as plain values."""
        return {
            "holds": self.holds,
            "verdicts": [{**dataclasses.asdict(v), "holds": v.holds} for v in self.verdicts],
            "crossings": as_table(self.crossings),
            **bytes_per_client(self.crossings),
            "inherent": [dataclasses.asdict(one) for one in self.inherent],
            "notes": list(self.notes),
            "guarantee": self.promise,
        }

    def lines(self) -> Iterator[str]:
        """Yields the audit as lines for people."""
        for direction, title in (("broadcast", "down"), ("aggregate", "up")):
            own = [c for c in self.crossings if c.direction == direction]
            size = _in_bytes(total_bytes(own, direction))
            yield f"{title}: {len(own)} tensors, {size} a client"
            for c in own:
                shape = "x".join("?" if n is None else str(n) for n in c.shape) or "number"
                yield f"  {c.name or '(nameless)'}: {c.dtype} {shape}, {_in_bytes(c.num_bytes)}"
        for verdict in self.verdicts:
            yield f"{verdict.check}: {'holds' if verdict.holds else 'LEAK'}. {verdict.asks}"
            for leak in verdict.found[:_MOST_SHOWN]:
                yield f"  {leak}"
            if len(verdict.found) > _MOST_SHOWN:
                yield f"  and {len(verdict.found) - _MOST_SHOWN} more"
        yield from map(_inherent_line, _by_table(self.inherent))
        yield from self.notes
        yield self.promise


def _in_bytes(size: int | None) -> str:
    return "bytes that depend on values" if size is None else f"{size:,} bytes"


def guarantee(privacy: Mapping[str, Any]) -> str:
    """Returns what is guaranteed by what `Trainer.describe_privacy` says, in a sentence."""
    if privacy.get("epsilon") is None:
        return "guarantee: no formal guarantee; the size of a cohort alone hides what updates tell"
    held = {"secret": "nobody knows who was drawn", "public": "nobody knows the noise"}
    return (
        f"guarantee: user-level differential privacy, epsilon {privacy['epsilon']:.3g} at delta "
        f"{privacy['delta']:.3g} after {privacy['rounds']} rounds, for {privacy['neighbours']}, "
        f"where {held[privacy['draw']]}"
    )


def _by_table(inherent: Sequence[Inherent]) -> Iterator[list[Inherent]]:
    ordered = sorted(inherent, key=lambda one: (one.table, one.variable or "", one.cohort))
    for _, group in groupby(ordered, key=lambda one: (one.table, one.variable)):
        yield list(group)


def _inherent_line(group: list[Inherent]) -> str:
    def listed(values: list[str]) -> str:
        return " / ".join(values)

    first = group[0]
    line = (
        f"inherent: in a sum of {listed([str(one.cohort) for one in group])} honest updates of "
        f"{first.table}, {listed([f'{one.share_of_rows:.0%}' for one in group])} of the rows that "
        "change are those of one client's examples, of which "
        f"{listed([f'{one.rows_seen:.0%}' for one in group])} change"
    )
    if first.variable is None:
        return line
    cosines = listed([f"{one.cosine:.2f}" for one in group if one.cosine is not None])
    return f"{line}; cosine with {first.variable}: {cosines}"

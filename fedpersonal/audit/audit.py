"""The audit of a process: types and names, and experiments with the compiled computation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from fedpersonal.audit.checks import (
    Inherent,
    check_broadcast,
    check_reference,
    check_severed,
    measure,
)
from fedpersonal.audit.declared import check_added, check_loss, check_metrics
from fedpersonal.audit.reference import Reference
from fedpersonal.audit.subject import Subject, run_rounds_of_one
from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.federated.boundary import (
    Crossing,
    LocalVariableError,
    as_table,
    bytes_per_client,
    check_boundary,
    list_crossings,
    total_bytes,
)

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
        for group in _by_table(self.inherent):
            yield from _inherent_lines(group)
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


def _inherent_lines(group: list[Inherent]) -> Iterator[str]:
    """Yields what the updates of a table tell, a sentence for each size of a cohort."""
    first = group[0]
    yield (
        f"inherent: the server adds up honest updates of {first.table}, and this tells it of one "
        "client"
    )
    for one in group:
        alone = one.cohort == 1
        line = (
            f"  {'alone' if alone else f'among {one.cohort}'}: {one.rows_seen:.0%} of the rows "
            "that its examples look up change; they are "
            f"{one.share_of_rows:.0%} of all rows that change"
        )
        if one.cosine is not None and one.chance is not None:
            line += (
                f"; the change points where its {one.variable} does by a cosine of "
                f"{one.cosine:.2f} (1: just there; by chance: {one.chance:.2f})"
            )
        yield line


def audit(
    subject: Subject,
    *,
    privacy: Mapping[str, Any],
    rounds: int = 4,
    many: ClientDataset | None = None,
) -> Audit:
    """Checks what a process sends, by its types and names and by experiment.

    Args:
        subject: What is audited.
        privacy: What `Trainer.describe_privacy` says of it.
        rounds: Rounds that the first of its clients takes part in; a leak in a later one is not
            found.
        many: Clients for measuring what honest updates tell, or None to leave it out.
    """
    if rounds < 1:
        raise UserError(f"audit: rounds must be at least 1, not {rounds}.")
    model, crossings, names = subject.model, list_crossings(subject.process.next), []
    try:
        check_boundary(model, subject.process.next)
    except LocalVariableError as error:
        names.append(str(error))
    process = subject.build(model) if subject.has_aggregator else subject.process
    tap, done = run_rounds_of_one(subject, process, rounds)
    reference = Reference(
        model,
        subject.algorithm,
        batch_size=subject.execution.batch_size,
        seed=subject.seed,
        shuffle=subject.execution.shuffle,
    )
    differing, tolerance = check_reference(subject, reference, tap.crossings, done)
    adds_losses = reference.adds_losses
    verdicts = [
        Verdict("names", "No local variable is sent under its name.", tuple(names)),
        _verdict(
            "broadcast",
            "What is broadcast does not depend on what clients bring to the round.",
            check_broadcast(subject, done),
        ),
        _verdict(
            "severed",
            "With the data loss times 0, nothing sent depends on local variables or examples.",
            check_severed(subject, done, adds_losses=adds_losses),
        ),
        _verdict(
            "reference", "What is sent is what a plain round comes to, and no more.", differing
        ),
        _verdict(
            "declared",
            "Loss and metrics compare what a model predicts with labels; losses that it adds tell "
            "no more than sizes.",
            [
                *check_loss(subject, reference),
                *check_metrics(subject, reference),
                *check_added(subject, reference),
            ],
        ),
    ]
    notes = [
        f"{rounds} rounds of one client with {len(subject.examples(0).labels)} examples were "
        "looked at"
    ]
    if tolerance is not None:
        notes.append(
            f"not tested: what hides in rounding; reference takes differences of up to "
            f"{tolerance.allowed:.1g} in {tolerance.name} for it, {tolerance.share:.1g} of its "
            "largest entry, and less elsewhere"
        )
    if subject.has_aggregator:
        notes.append(
            "severed and reference looked at the updates before the aggregator, which sees nothing "
            "but them and their weights"
        )
    if adds_losses:
        notes.append(
            "inherent: the model adds losses, and the loss that clients report includes them; of a "
            "penalty on local variables it tells their size, and of one on what layers make of "
            "inputs something of these"
        )
    if np.unique(subject.clients.labels).size < 2:
        notes.append("not tested: what labels tell, since all those of the clients are equal")
    if model.example_weight is not None:
        notes.append(
            "not tested: what example_weight tells about labels (clients send its sum); read it"
        )
    if subject.algorithm.personal and subject.algorithm.personal.are_told:
        notes.append(
            f"declared: what clients of {subject.algorithm.name} send follows from their personal "
            "copies, too; severed looked at labels alone"
        )
    if subject.algorithm.choice:
        what = "how they weigh the models" if model.mixes else "which model they have chosen"
        notes.append(f"declared: what clients of {subject.algorithm.name} send tells {what}")
    measured = measure(subject, tap, reference, many, done[-1]) if many is not None else []
    return Audit(crossings, verdicts, measured, notes, guarantee(privacy))


def _verdict(check: str, asks: str, found: list[str]) -> Verdict:
    return Verdict(check, asks, tuple(found))

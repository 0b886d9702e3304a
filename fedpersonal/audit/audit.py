"""The audit of a process, by types and names and by experiments with its computation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from fedpersonal.audit.checks import (
    TableLeak,
    check_broadcast,
    check_reference,
    check_without_labels,
    measure_table_leaks,
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
from fedpersonal.former import FormerAttribute

_MAX_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        check: The check's name.
        requirement: The property that should hold, in a sentence.
        leaks: The violations of it, a sentence each.
    """

    check: str
    requirement: str
    leaks: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the check has found no leak."""
        return not self.leaks

    def as_json(self) -> dict[str, Any]:
        """Returns the verdict as plain values, under the keys of files."""
        return {
            "check": self.check,
            "asks": self.requirement,
            "found": self.leaks,
            "holds": self.holds,
        }


@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        crossings: The tensors that are broadcast and aggregated.
        verdicts: The results of the checks.
        table_leaks: What honest updates of lookup tables reveal of a client.
        notes: Limits of the audit, and what clients reveal by declaration.
        guarantee: The privacy guarantee if all checks hold, in a sentence.
    """

    found = FormerAttribute("leaks")

    crossings: Sequence[Crossing]
    verdicts: Sequence[Verdict]
    table_leaks: Sequence[TableLeak]
    notes: Sequence[str]
    guarantee: str

    @property
    def holds(self) -> bool:
        """Whether no check has found a leak."""
        return all(verdict.holds for verdict in self.verdicts)

    @property
    def leaks(self) -> list[str]:
        """All leaks, a sentence each."""
        return [leak for verdict in self.verdicts for leak in verdict.leaks]

    @property
    def promise(self) -> str:
        """The guarantee, or that there is none because a check has found a leak."""
        return self.guarantee if self.holds else "guarantee: none, since a check has found a leak"

    def as_json(self) -> dict[str, Any]:
        """Returns the audit as plain values."""
        return {
            "holds": self.holds,
            "verdicts": [verdict.as_json() for verdict in self.verdicts],
            "crossings": as_table(self.crossings),
            **bytes_per_client(self.crossings),
            "inherent": [dataclasses.asdict(one) for one in self.table_leaks],
            "notes": list(self.notes),
            "guarantee": self.promise,
        }

    def lines(self) -> Iterator[str]:
        """Yields the audit as lines of text."""
        for direction, title in (("broadcast", "down"), ("aggregate", "up")):
            crossings = [c for c in self.crossings if c.direction == direction]
            size = _in_bytes(total_bytes(crossings, direction))
            yield f"{title}: {len(crossings)} tensors, {size} a client"
            for c in crossings:
                shape = "x".join("?" if n is None else str(n) for n in c.shape) or "number"
                yield f"  {c.name or '(nameless)'}: {c.dtype} {shape}, {_in_bytes(c.num_bytes)}"
        for verdict in self.verdicts:
            outcome = "holds" if verdict.holds else "LEAK"
            yield f"{verdict.check}: {outcome}. {verdict.requirement}"
            for leak in verdict.leaks[:_MAX_SHOWN]:
                yield f"  {leak}"
            if len(verdict.leaks) > _MAX_SHOWN:
                yield f"  and {len(verdict.leaks) - _MAX_SHOWN} more"
        for group in _by_table(self.table_leaks):
            yield from _table_leak_lines(group)
        yield from self.notes
        yield self.promise


def _in_bytes(size: int | None) -> str:
    return "bytes that depend on values" if size is None else f"{size:,} bytes"


def guarantee(privacy: Mapping[str, Any]) -> str:
    """Returns the guarantee of a result of `Trainer.describe_privacy`, in a sentence."""
    if privacy.get("epsilon") is None:
        return (
            "guarantee: no formal guarantee; the size of a cohort alone hides what updates reveal"
        )
    conditions = {
        "secret": "the sampled clients are secret",
        "public": "the noise is secret",
    }
    return (
        f"guarantee: user-level differential privacy, epsilon {privacy['epsilon']:.3g} at delta "
        f"{privacy['delta']:.3g} after {privacy['rounds']} rounds, for {privacy['neighbours']}, "
        f"as long as {conditions[privacy['draw']]}"
    )


def _by_table(leaks: Sequence[TableLeak]) -> Iterator[list[TableLeak]]:
    ordered = sorted(leaks, key=lambda one: (one.table, one.variable or "", one.cohort))
    for _, group in groupby(ordered, key=lambda one: (one.table, one.variable)):
        yield list(group)


def _table_leak_lines(group: list[TableLeak]) -> Iterator[str]:
    """Yields what a table's updates reveal of a client, a sentence for each size of a cohort."""
    first = group[0]
    yield f"inherent: the sum of honest updates of {first.table} reveals of one client"
    for one in group:
        alone = one.cohort == 1
        line = (
            f"  {'alone' if alone else f'among {one.cohort}'}: {one.rows_seen:.0%} of the rows "
            "that its examples look up change; they are "
            f"{one.share_of_rows:.0%} of all rows that change"
        )
        if one.cosine is not None and one.chance is not None:
            line += (
                f"; the cosine between the change's direction and its {one.variable} is "
                f"{one.cosine:.2f} (1: the same direction; by chance: {one.chance:.2f})"
            )
        yield line


def audit(
    subject: Subject,
    *,
    privacy: Mapping[str, Any],
    rounds: int = 4,
    measured_clients: ClientDataset | None = None,
) -> Audit:
    """Checks what a process sends, by its types and names and by experiment.

    Args:
        subject: The process, with clients to try it with.
        privacy: The result of `Trainer.describe_privacy`.
        rounds: The number of rounds of the first client. Leaks in later rounds are not found.
        measured_clients: Clients with which to measure what honest updates reveal; None to skip
            that.
    """
    if rounds < 1:
        raise UserError(f"audit: rounds must be at least 1, not {rounds}.")
    model, crossings, named_leaks = subject.model, list_crossings(subject.process.next), []
    try:
        check_boundary(model, subject.process.next)
    except LocalVariableError as error:
        named_leaks.append(str(error))
    process = subject.build(model) if subject.has_aggregator else subject.process
    recorder, done = run_rounds_of_one(subject, process, rounds)
    reference = Reference(
        model,
        subject.algorithm,
        batch_size=subject.execution.batch_size,
        seed=subject.seed,
        shuffle=subject.execution.shuffle,
    )
    differing, tolerance = check_reference(subject, reference, recorder.crossings, done)
    adds_losses = reference.adds_losses
    verdicts = [
        Verdict("names", "No local variable is sent under its name.", tuple(named_leaks)),
        _verdict(
            "broadcast",
            "Broadcasts do not depend on data or local variables of the round's clients.",
            check_broadcast(subject, done),
        ),
        _verdict(
            "severed",
            "With the data loss times 0, sent tensors depend on no local variable or example.",
            check_without_labels(subject, done, adds_losses=adds_losses),
        ),
        _verdict("reference", "Clients send the results of a plain round, and no more.", differing),
        _verdict(
            "declared",
            "Loss and metrics compare predictions with labels; losses that the model adds reveal "
            "no more than sizes.",
            [
                *check_loss(subject, reference),
                *check_metrics(subject, reference),
                *check_added(subject, reference),
            ],
        ),
    ]
    notes = [
        f"the checks ran {rounds} rounds of one client with {len(subject.examples(0).labels)} "
        "examples"
    ]
    if tolerance is not None:
        notes.append(
            "not tested: leaks as small as rounding; reference accepts differences of up to "
            f"{tolerance.allowed:.1g} in {tolerance.name}, {tolerance.share:.1g} of its largest "
            "entry, and less in other tensors"
        )
    if subject.has_aggregator:
        notes.append(
            "severed and reference checked the updates before the aggregator, whose only inputs "
            "are these updates and their weights"
        )
    if adds_losses:
        notes.append(
            "inherent: the model adds losses, and the loss that clients report includes them; a "
            "penalty on local variables reveals their size, and a penalty on layers' outputs "
            "reveals something of the inputs"
        )
    if np.unique(subject.clients.labels).size < 2:
        notes.append("not tested: what labels reveal, since all clients' labels are equal")
    if model.example_weight is not None:
        notes.append(
            "not tested: what example_weight reveals about labels (clients send its sum); read its "
            "code"
        )
    if subject.algorithm.personal and subject.algorithm.personal.reveals_copies:
        notes.append(
            f"declared: clients of {subject.algorithm.name} send values that depend on their "
            "personal copies; severed varied labels alone"
        )
    if subject.algorithm.choice:
        choice = "weights of the models" if model.mixes else "choice of a model"
        notes.append(f"declared: clients of {subject.algorithm.name} reveal their {choice}")
    table_leaks: list[TableLeak] = []
    if measured_clients is not None:
        table_leaks = measure_table_leaks(subject, recorder, reference, measured_clients, done[-1])
    return Audit(crossings, verdicts, table_leaks, notes, guarantee(privacy))


def _verdict(check: str, requirement: str, leaks: list[str]) -> Verdict:
    return Verdict(check, requirement, tuple(leaks))

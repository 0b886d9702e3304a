"""The audit of a process: types and names, and experiments with the compiled computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpersonal.audit.checks import check_broadcast, check_reference, check_severed
from fedpersonal.audit.declared import check_added, check_loss, check_metrics
from fedpersonal.audit.inherent import measure
from fedpersonal.audit.reference import Reference
from fedpersonal.audit.report import Audit, Verdict, guarantee
from fedpersonal.audit.subject import Subject, run_rounds_of_one
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.process.boundary import LocalVariableError, check_boundary, list_crossings


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
        model, subject.algorithm, batch_size=subject.execution.batch_size, seed=subject.seed
    )
    differing = check_reference(subject, reference, tap.crossings, done)
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
    if subject.algorithm.personal and subject.algorithm.personal.are_sent:
        notes.append(
            f"declared: clients of {subject.algorithm.name} send their personal copies; severed "
            "looked at labels alone"
        )
    measured = measure(subject, tap, reference, many, done[-1]) if many is not None else []
    return Audit(crossings, verdicts, measured, notes, guarantee(privacy))


def _verdict(check: str, asks: str, found: list[str]) -> Verdict:
    return Verdict(check, asks, tuple(found))

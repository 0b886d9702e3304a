"""The audit of a task's experiment, which trains nothing."""

from __future__ import annotations

import dataclasses

from fedpersonal.audit.report import Audit, guarantee
from fedpersonal.tasks.experiment import Experiment


def audit_experiment(experiment: Experiment, *, rounds: int = 4) -> Audit:
    """Checks by experiment what crosses in the rounds of an experiment, and what else crosses."""
    promise = guarantee(experiment.trainer.describe_privacy(experiment.options.total_rounds))
    if not experiment.method.trains:
        return Audit((), (), (), ["There are no rounds: nothing is ever sent."], promise)
    crossings, _ = experiment.task.boundary(experiment)
    found = experiment.trainer.audit(rounds=rounds)
    further = [c.name for c in crossings if c not in found.crossings]
    notes = list(found.notes)
    if further:
        notes.append(
            f"declared: {', '.join(further)} cross once, after the last round, where unseen users "
            "start from them; --unseen_start=fresh does without"
        )
    return dataclasses.replace(found, crossings=crossings, notes=notes, guarantee=promise)

"""The rounds of a run, one after another, to the end or to be gone on with."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from fedpersonal.errors import UserError
from fedpersonal.simulation import flat_metrics, prefetch
from fedpersonal.simulation import run_folder as run_folder_lib
from fedpersonal.simulation import session as session_lib


@dataclasses.dataclass(frozen=True)
class LoopResult:
    """What came of the rounds.

    Attributes:
        state: The state after the last round.
        rounds_run: How many rounds this call has run.
        resumed_from: The round after which this call went on, or 0.
        train_wall_seconds: The time spent in training rounds, over all sessions of the run.
        median_round_seconds: The median time of a training round, over all sessions of the run.
    """

    state: Any
    rounds_run: int
    resumed_from: int
    train_wall_seconds: float
    median_round_seconds: float


def run_rounds(
    *,
    process: Any,
    cohort_fn: Callable[[int], Any],
    run_folder: run_folder_lib.RunFolder,
    total_rounds: int,
    evaluate_fn: Callable[[Any, int], Mapping[str, Any]] | None = None,
    rounds_per_eval: int = 50,
    rounds_per_checkpoint: int = 50,
    progress: bool = True,
    saved_in: Any = None,
) -> LoopResult:
    """Runs rounds 1 to `total_rounds`, or those that former sessions have left.

    A run that was stopped, or killed at any moment, goes on from its last checkpoint and gives the
    metrics and the state of an undisturbed run, to the bit, if `process.next`, `cohort_fn` and
    `evaluate_fn` are functions of their arguments alone and leave these as they are.

    Args:
        process: `initialize()` returns the first state, `next(state, cohort)` an object with the
            next `state` and the round's `metrics`, a nested mapping of numbers.
        cohort_fn: Gives the cohort of a round, by its number. It is called in a second thread, one
            round ahead.
        run_folder: Receives `metrics.csv`, TensorBoard events and checkpoints.
        total_rounds: The last round.
        evaluate_fn: Evaluates a state after a round.
        rounds_per_eval: Evaluation follows each round that this divides, and the last one.
        rounds_per_checkpoint: The same for checkpoints.
        progress: Whether to report progress on stderr.
        saved_in: Where checkpoints are, such as `StoreCheckpoints`; None for files
            in the run folder.

    Returns:
        The last state and the times.

    Raises:
        UserError: An option is out of range, the run has gone beyond `total_rounds`, or a training
            loss is not finite.
    """
    for name, value in [
        ("total_rounds", total_rounds),
        ("rounds_per_eval", rounds_per_eval),
        ("rounds_per_checkpoint", rounds_per_checkpoint),
    ]:
        if value < 1:
            raise UserError(f"{name} is {value}; it must be at least 1.")
    session = session_lib.Session(
        process=process,
        folder=run_folder,
        total_rounds=total_rounds,
        show_progress=progress,
        saved_in=saved_in,
    )

    def is_due(round_number: int, period: int) -> bool:
        return round_number % period == 0 or round_number == total_rounds

    resumed_from = session.at.round_number
    rounds = range(resumed_from + 1, total_rounds + 1)
    with prefetch.one_ahead(cohort_fn, rounds) as cohort_of, session:
        for round_number in rounds:
            start = time.perf_counter()
            output = process.next(session.at.state, cohort_of(round_number))
            seconds = time.perf_counter() - start

            metrics = flat_metrics.flatten(output.metrics, prefix="train")
            flat_metrics.check_finite_loss(metrics, round_number)
            if evaluate_fn is not None and is_due(round_number, rounds_per_eval):
                evaluation = evaluate_fn(output.state, round_number)
                metrics.update(flat_metrics.flatten(evaluation, prefix="eval"))
            session.record(
                round_number=round_number, state=output.state, seconds=seconds, metrics=metrics
            )
            if is_due(round_number, rounds_per_checkpoint):
                session.save()
    return LoopResult(
        state=session.at.state,
        rounds_run=len(rounds),
        resumed_from=resumed_from,
        train_wall_seconds=session.at.train_wall_seconds,
        median_round_seconds=session.median_round_seconds,
    )

"""The rounds of a run, one after another, to the end or to be gone on with."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal import runtime
from fedpersonal.errors import TrainingError, UserError
from fedpersonal.runs.checkpoints import Checkpoints
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.metrics import MetricLog
from fedpersonal.runs.saver import Saver, Storage
from fedpersonal.training.callbacks import Callback, LearningCheck, Run
from fedpersonal.training.progress import Progress, TensorBoard


@dataclasses.dataclass(frozen=True)
class LoopResult:
    """What came of the rounds.

    Attributes:
        state: The state after the last round.
        rounds_run: How many rounds this call has run.
        resumed_from: The round after which this call went on, or 0.
        train_wall_seconds: The time spent in training rounds, over all sessions of the run.
        median_round_seconds: The median time of a training round, over all sessions of the run.
        stop_reason: Why a callback has ended the run before `total_rounds`, or None.
    """

    state: Any = dataclasses.field(repr=False)
    rounds_run: int
    resumed_from: int
    train_wall_seconds: float
    median_round_seconds: float
    stop_reason: str | None = None


def run_rounds(
    *,
    process: Any,
    cohort_fn: Callable[[int], Any],
    run_folder: RunFolder,
    total_rounds: int,
    evaluate_fn: Callable[[Any, int], Mapping[str, Any]] | None = None,
    rounds_per_eval: int = 50,
    rounds_per_checkpoint: int = 50,
    progress: bool = True,
    saved_in: Storage | None = None,
    callbacks: Sequence[Callback] = (),
    columns_fn: Callable[[int], Mapping[str, float]] | None = None,
    dropped_fn: Callable[[Any, int], Sequence[str]] | None = None,
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
        rounds_per_eval: Evaluation follows each round that this divides, and round `total_rounds`.
        rounds_per_checkpoint: The same for checkpoints.
        progress: Whether to report progress on stderr.
        saved_in: Where checkpoints are; None for files in the run folder.
        callbacks: What else takes part, in this order, such as `EarlyStopping`.
        columns_fn: Gives further columns of a round's row, by its number.
        dropped_fn: Names the first clients whose updates a round drops, by the state before it and
            its number; it is called once, when this begins.

    Returns:
        The last state and the times.

    Raises:
        UserError: An option is out of range, the run has gone beyond `total_rounds`, its files
            are damaged or cannot be written, a loss or weights are not finite, or no client's
            update could be used (see `LearningCheck`).
    """
    periods = {"rounds_per_eval": rounds_per_eval, "rounds_per_checkpoint": rounds_per_checkpoint}
    for name, value in {"total_rounds": total_rounds, **periods}.items():
        if value < 1:
            raise UserError(f"{name} is {value}; it must be at least 1.")
    storage = saved_in or Checkpoints(run_folder.checkpoints)
    log, learning = MetricLog(), LearningCheck()
    saver = Saver(storage, [log, learning, *callbacks], every=rounds_per_checkpoint)
    run = Run(run_folder, total_rounds, evaluate_fn is not None, state=process.initialize())
    saver.resume(run)
    shown = [Progress()] if progress else []
    everybody = [log, TensorBoard(), *shown, learning, *callbacks, saver]

    resumed_from = run.round_number
    rounds = range(resumed_from + 1, total_rounds + 1) if run.stop_reason is None else range(0)
    with contextlib.ExitStack() as stack:
        cohort_of = stack.enter_context(_one_ahead(cohort_fn, rounds))
        stack.enter_context(runtime.shard_threads())
        for callback in everybody:
            callback.on_start(run)
            stack.push(functools.partial(_end, callback, run))
        for round_number in rounds:
            start = time.perf_counter()
            output = process.next(run.state, cohort_of(round_number))
            seconds = time.perf_counter() - start

            metrics = _flatten(output.metrics, prefix="train")
            if metrics.get("train/num_examples", 1):  # Of nobody's examples there is no loss.
                _check_finite_loss(metrics, round_number)
            if dropped_fn and metrics.get("train/num_dropped_updates") and not learning.has_warned:
                learning.dropped = dropped_fn(run.state, round_number)
            is_due = round_number % rounds_per_eval == 0 or round_number == total_rounds
            if evaluate_fn is not None and is_due:
                # What has diverged is told in one line.
                with np.errstate(over="ignore", invalid="ignore"):
                    evaluated = _flatten(evaluate_fn(output.state, round_number), prefix="eval")
                _check_finite_loss(evaluated, round_number)
                metrics.update(evaluated)
            if columns_fn is not None:
                metrics.update(columns_fn(round_number))
            run.state, run.round_number, run.metrics = output.state, round_number, metrics
            run.seconds = seconds
            run.train_wall_seconds += seconds
            run_folder.check_is_ours()
            for callback in everybody:
                callback.on_round_end(run)
            if run.stop_reason is not None:
                break
    return LoopResult(
        state=run.state,
        rounds_run=run.round_number - resumed_from,
        resumed_from=resumed_from,
        train_wall_seconds=run.train_wall_seconds,
        median_round_seconds=log.median_seconds,
        stop_reason=run.stop_reason,
    )


@contextlib.contextmanager
def _one_ahead(make: Callable[[int], Any], rounds: range) -> Iterator[Callable[[int], Any]]:
    """Yields what returns a round's cohort, asked for in order, and has the next one made.

    It is made in a second thread while this one is busy with the round. What `make` raises, the
    function that is yielded raises.
    """
    thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    begun: dict[int, concurrent.futures.Future] = {}

    def get(number: int) -> Any:
        for wanted in (number, number + 1):
            if wanted in rounds and wanted not in begun:
                begun[wanted] = thread.submit(make, wanted)
        return begun.pop(number).result()

    waits = True
    try:
        yield get
    except (KeyboardInterrupt, SystemExit):
        waits = False  # For a cohort; and a signal may have left closed the lock that it needs.
        raise
    finally:
        thread.shutdown(wait=waits, cancel_futures=True)


def _end(callback: Callback, run: Run, kind: Any, error: BaseException | None, trace: Any) -> None:
    callback.on_end(run, error)


def _flatten(metrics: Mapping[str, Any], *, prefix: str) -> dict[str, Any]:
    """Returns the numbers of nested mappings by their path, such as 'train/accuracy'.

    Empty tuples, with which TFF stands for nothing, are left out.
    """
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        path = f"{prefix}/{name}"
        shape = getattr(value, "shape", ())
        if isinstance(value, Mapping):
            flat.update(_flatten(value, prefix=path))
        elif shape == () and hasattr(value, "__float__"):
            flat[path] = value.numpy() if hasattr(value, "numpy") else value
        elif not isinstance(value, (list, tuple)) or value:
            kind = type(value).__name__ + (f" of shape {shape}" if shape else "")
            raise TypeError(f"The metric {path} is a {kind}; a number is needed.")
    return flat


def _check_finite_loss(metrics: Mapping[str, float], round_number: int) -> None:
    for name, value in metrics.items():
        if "loss" in name.rpartition("/")[2] and not math.isfinite(value):
            raise TrainingError(
                f"The training has diverged: {name} is {value} in round {round_number}; start a "
                "new run with a lower learning rate."
            )

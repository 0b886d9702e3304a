"""The loop over the rounds of a run, which can be resumed."""

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
from fedpersonal.runs.state import Callback, RunState
from fedpersonal.training.callbacks import StopIfStuck
from fedpersonal.training.progress import Progress, TensorBoard


@dataclasses.dataclass(frozen=True)
class LoopResult:
    """The result of the rounds.

    Attributes:
        state: The state after the last round.
        rounds_run: Number of rounds that this call has run.
        resumed_from: The round after which this call resumed the run, or 0.
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
    """Runs rounds 1 to `total_rounds`, or those that earlier sessions have not run.

    A run that was stopped, or killed at any moment, resumes from its last checkpoint. Its metrics
    and state are bit-identical to those of an uninterrupted run, if `process.next`, `cohort_fn` and
    `evaluate_fn` depend on their arguments alone and do not change them.

    Args:
        process: `initialize()` returns the first state, `next(state, cohort)` an object with the
            next `state` and the round's `metrics`, a nested mapping of numbers.
        cohort_fn: Maps a round number to the round's cohort. It is called in a second thread, one
            round ahead.
        run_folder: Receives `metrics.csv`, TensorBoard events and checkpoints.
        total_rounds: The last round.
        evaluate_fn: Evaluates a state after a round.
        rounds_per_eval: Rounds between evaluations; round `total_rounds` is evaluated, too.
        rounds_per_checkpoint: Rounds between checkpoints; the last round has one, too.
        progress: Whether to report progress on stderr.
        saved_in: The storage of checkpoints; None for files in the run folder.
        callbacks: Further callbacks, in this order, such as `EarlyStopping`.
        columns_fn: Maps a round number to further columns of its row.
        dropped_fn: Maps the state before a round and its number to the names of the first clients
            whose updates the round drops. It is called once, at the first such round.

    Returns:
        The last state and the times.

    Raises:
        UserError: An option is out of range, the run is already beyond `total_rounds`, its files
            are damaged or cannot be written, a loss or weights are not finite, or no client's
            update could be used (see `StopIfStuck`).
    """
    periods = {"rounds_per_eval": rounds_per_eval, "rounds_per_checkpoint": rounds_per_checkpoint}
    for name, value in {"total_rounds": total_rounds, **periods}.items():
        if value < 1:
            raise UserError(f"{name} is {value}; it must be at least 1.")
    storage = saved_in or Checkpoints(run_folder.checkpoints)
    log, stuck_check = MetricLog(), StopIfStuck()
    saver = Saver(storage, [log, stuck_check, *callbacks], every=rounds_per_checkpoint)
    run = RunState(run_folder, total_rounds, evaluate_fn is not None, state=process.initialize())
    saver.resume(run)
    shown = [Progress()] if progress else []
    all_callbacks = [log, TensorBoard(), *shown, stuck_check, *callbacks, saver]

    resumed_from = run.round_number
    rounds = range(resumed_from + 1, total_rounds + 1) if run.stop_reason is None else range(0)
    with contextlib.ExitStack() as stack:
        cohort_of = stack.enter_context(_one_ahead(cohort_fn, rounds))
        stack.enter_context(runtime.shard_threads())
        for callback in all_callbacks:
            callback.on_start(run)
            stack.push(functools.partial(_end, callback, run))
        for round_number in rounds:
            start = time.perf_counter()
            output = process.next(run.state, cohort_of(round_number))
            seconds = time.perf_counter() - start

            metrics = _flatten(output.metrics, prefix="train")
            if metrics.get("train/num_examples", 1):  # Without examples there is no loss.
                _check_finite_loss(metrics, round_number)
            has_dropped = bool(metrics.get("train/num_dropped_updates"))
            if dropped_fn and has_dropped and not stuck_check.has_warned:
                stuck_check.dropped = dropped_fn(run.state, round_number)
            is_due = round_number % rounds_per_eval == 0 or round_number == total_rounds
            if evaluate_fn is not None and is_due:
                # Divergence is reported in one line, below.
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
            for callback in all_callbacks:
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
    """Yields a function from round to cohort that prefetches the next round's cohort.

    Rounds must be requested in order. A second thread makes the next cohort while this thread runs
    the round. The yielded function raises the exceptions of `make`.
    """
    thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    started: dict[int, concurrent.futures.Future] = {}

    def get(number: int) -> Any:
        for needed in (number, number + 1):
            if needed in rounds and needed not in started:
                started[needed] = thread.submit(make, needed)
        return started.pop(number).result()

    waits = True
    try:
        yield get
    except (KeyboardInterrupt, SystemExit):
        waits = False  # The thread may wait for a lock that the signal has left closed.
        raise
    finally:
        thread.shutdown(wait=waits, cancel_futures=True)


def _end(
    callback: Callback, run: RunState, kind: Any, error: BaseException | None, trace: Any
) -> None:
    callback.on_end(run, error)


def _flatten(metrics: Mapping[str, Any], *, prefix: str) -> dict[str, Any]:
    """Returns the numbers of nested mappings by their path, such as 'train/accuracy'.

    Empty tuples, which TFF uses for absent metrics, are left out.
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

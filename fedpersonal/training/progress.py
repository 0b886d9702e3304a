"""Progress of a run, on stderr and for TensorBoard."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import tqdm
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer import record_writer

from fedpersonal.errors import with_count
from fedpersonal.files import report_write_errors
from fedpersonal.runs.state import Callback, RunState

_SECONDS_A_LINE = 10.0
_METRICS_A_SOURCE = 3


class Progress(Callback):
    """A progress bar on a terminal; elsewhere a line after the first round, then every 10 s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        """Stores the clock, which returns seconds since an arbitrary moment."""
        self._clock = clock

    def on_start(self, run: RunState) -> None:
        """Begins, and reports the round after which a run is resumed."""
        self._start = self._clock()
        # The first round and the time after it. It is slow, because graphs are traced.
        self._first: tuple[int, float] | None = None
        self._last_line = 0.0
        self._evaluation: tuple[int, Mapping[str, Any]] = (0, {})
        self._bar = None
        if run.round_number and run.round_number == run.total_rounds:
            done = f"The run is finished: {with_count(run.round_number, 'rounds')}."
            options = run.folder.config["options"]
            # With a target epsilon, the noise is computed for this number of rounds.
            if options.get("dp_target_epsilon") is None:
                done += " With a larger --total_rounds (rounds= of fit) it resumes from there."
            _print_line(done)
        elif run.round_number and run.stop_reason is None:
            _print_line(f"Resuming after round {run.round_number}.")
        if sys.stderr.isatty():
            self._bar = tqdm.tqdm(
                total=run.total_rounds, initial=run.round_number, unit="round", dynamic_ncols=True
            )

    def on_round_end(self, run: RunState) -> None:
        """Shows that a round is done."""
        now = self._clock()
        if any(name.startswith("eval/") for name in run.metrics):
            self._evaluation = run.round_number, run.metrics
        if self._bar is not None:
            self._bar.set_postfix_str(self._describe(run), refresh=False)
            self._bar.update()
        elif (
            self._first is None
            or now - self._last_line >= _SECONDS_A_LINE
            or run.round_number == run.total_rounds
        ):
            self._last_line = now
            counter = f"round {run.round_number}/{run.total_rounds}, {now - self._start:.0f} s"
            _print_line(f"{counter}{self._left(run, now)}: {self._describe(run)}")
        if self._first is None:
            self._first = run.round_number, now

    def on_end(self, run: RunState, error: BaseException | None) -> None:
        """Reports why the run has stopped early, and closes the bar."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            if run.saved_round:
                done = f"Stopped after round {run.saved_round}; the same command resumes the run."
            else:
                done = "Stopped before the end of the first round: there is nothing to resume."
            _print_line(done)
        elif error is None and run.stop_reason is not None:
            _print_line(f"The run has ended after round {run.round_number}: {run.stop_reason}")
        if self._bar is not None:
            self._bar.close()

    def _left(self, run: RunState, now: float) -> str:
        """Returns the estimated time left, from the speed after the slow first round."""
        missing = run.total_rounds - run.round_number
        if self._first is None or not missing:
            return ""
        number, then = self._first
        seconds = missing * (now - then) / (run.round_number - number)
        for size, unit in ((3600, "h"), (60, "min")):
            if seconds >= 1.5 * size:
                return f", {seconds / size:.{int(unit == 'h')}f} {unit} left"
        return f", {seconds:.0f} s left"

    def _describe(self, run: RunState) -> str:
        """Returns the first metrics of the round, and of the last evaluation and its round."""
        number, evaluated = self._evaluation
        shown = [*_first_metrics(run.metrics, "train/"), *_first_metrics(evaluated, "eval/")]
        if number not in (0, run.round_number):
            shown[-1] += f" (round {number})"
        if "epsilon" in run.metrics:
            shown.append(f"epsilon {run.metrics['epsilon']:.3g}")
        return ", ".join(shown)


def _first_metrics(metrics: Mapping[str, Any], source: str) -> list[str]:
    names = [name for name in metrics if name.startswith(source) and "/num_" not in name]
    return [f"{name} {metrics[name]:.4g}" for name in names[:_METRICS_A_SOURCE]]


def _print_line(line: str) -> None:
    """Prints a line, above the bar if there is one."""
    tqdm.tqdm.write(line, file=sys.stderr)


class TensorBoard(Callback):
    """Writes a file of events in the run folder."""

    def on_start(self, run: RunState) -> None:
        """Begins a file; it invalidates later rounds in the files of earlier sessions."""
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._path = run.folder.path / name
        with report_write_errors(self._path):
            self._file = open(self._path, "wb")
        self._records = record_writer.RecordWriter(self._file)
        self._add(event_pb2.Event(file_version="brain.Event:2"))
        begin = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(step=run.round_number + 1, session_log=begin))

    def on_round_end(self, run: RunState) -> None:
        """Writes the scalars of a round."""
        values = [
            summary_pb2.Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in {"seconds": run.seconds, **run.metrics}.items()
        ]
        self._add(event_pb2.Event(step=run.round_number, summary=summary_pb2.Summary(value=values)))

    def on_end(self, run: RunState, error: BaseException | None) -> None:
        """Closes the file."""
        with report_write_errors(self._path):
            self._file.close()

    def _add(self, event: event_pb2.Event) -> None:
        event.wall_time = time.time()
        with report_write_errors(self._path):
            self._records.write(event.SerializeToString())
            self._file.flush()

"""The metrics of a run for TensorBoard, written without TensorFlow.

A row of 10 scalars costs a fraction of what as many calls of `tf.summary.scalar` do, and a run
that goes on from a checkpoint can say so: TensorBoard then forgets the rounds that are run again.
"""

from __future__ import annotations

import os
import socket
import time

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer import record_writer

from fedpersonal.files import explained
from fedpersonal.simulation.callbacks.callback import Callback, Run


class TensorBoard(Callback):
    """Writes a file of events in the run folder."""

    def on_start(self, run: Run) -> None:
        """Begins a file; later rounds in the files of former sessions no longer count."""
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._path = run.folder.path / name
        with explained(self._path):
            self._file = open(self._path, "wb")
        self._records = record_writer.RecordWriter(self._file)
        self._add(event_pb2.Event(file_version="brain.Event:2"))
        begin = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(step=run.round_number + 1, session_log=begin))

    def on_round_end(self, run: Run) -> None:
        """Writes the scalars of a round."""
        values = [
            summary_pb2.Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in {"seconds": run.seconds, **run.metrics}.items()
        ]
        self._add(event_pb2.Event(step=run.round_number, summary=summary_pb2.Summary(value=values)))

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Closes the file."""
        with explained(self._path):
            self._file.close()

    def _add(self, event: event_pb2.Event) -> None:
        event.wall_time = time.time()
        with explained(self._path):
            self._records.write(event.SerializeToString())
            self._file.flush()

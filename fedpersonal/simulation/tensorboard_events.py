"""Scalars for TensorBoard, written without TensorFlow.

A row of 10 scalars costs a fraction of what as many calls of `tf.summary.scalar` do, and a run
that goes on from a checkpoint can say so: TensorBoard then forgets the rounds that are run again.
"""

from __future__ import annotations

import os
import pathlib
import socket
import time
from collections.abc import Mapping

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer import record_writer


class EventFile:
    """A TensorBoard event file to which scalars are appended."""

    def __init__(self, folder: str | os.PathLike, *, after_step: int = 0):
        """Begins a file.

        Args:
            folder: Where to make it.
            after_step: Scalars of later steps in former files of this folder no longer count.
        """
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(pathlib.Path(folder) / name, "wb")
        self._records = record_writer.RecordWriter(self._file)
        self._add(event_pb2.Event(file_version="brain.Event:2"))
        begin = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(step=after_step + 1, session_log=begin))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the scalars of a step."""
        values = [
            summary_pb2.Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in scalars.items()
        ]
        self._add(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=values)))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _add(self, event: event_pb2.Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._file.flush()

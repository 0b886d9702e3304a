"""Input and output of a library's program; `benchmarks.child` is its counterpart."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.by_numpy import Batches, Steps, cut_batches

_TICK = os.sysconf("SC_CLK_TCK")


class Job:
    """The rounds to run.

    Attributes:
        items: float32 (items, K): the items' vectors before the first round.
        steps: A client's work.
        cohorts: int (rounds, C): the clients of each round.
    """

    def __init__(self, folder: str):
        """Reads `job.npz` of a folder."""
        self._folder = pathlib.Path(folder)
        with np.load(self._folder / "job.npz") as arrays:
            self._data = {name: arrays[name] for name in arrays.files}
        self.items, self.cohorts = self._data["items"], self._data["cohorts"]
        self.steps = Steps(*(self._data[name].item() for name in Steps._fields))

    def client(self, index: int) -> Batches:
        """Returns a client's batches."""
        start, end = self._data["offsets"][index : index + 2]
        rated, ratings = (self._data[name][start:end] for name in ("rated", "ratings"))
        return cut_batches(rated, ratings, batch_size=self.steps.batch_size)

    def clients(self) -> dict[int, Batches]:
        """Returns the batches of all clients of all rounds."""
        return {int(index): self.client(index) for index in np.unique(self.cohorts)}

    def rounds(self) -> Iterator[np.ndarray]:
        """Yields each round's clients when the round begins; requesting the next one ends it.

        A line on standard input begins a round. A line on standard output has the round's seconds
        and its processor seconds in all processes.
        """
        # Output of libraries must not mix with the answers.
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        print("ready", file=answers, flush=True)
        for cohort in self.cohorts:
            if not sys.stdin.readline():
                raise EOFError("the benchmark has ended")
            processor, begin = processor_seconds(), time.perf_counter()
            yield cohort
            end = time.perf_counter()
            print(end - begin, processor_seconds() - processor, file=answers, flush=True)

    def finish(self, items: np.ndarray) -> None:
        """Writes the items' vectors after the last round."""
        np.save(self._folder / "items.npy", items)


def processor_seconds() -> float:
    """Returns the processor seconds of this process and, to a tick, of its descendants."""
    ticks, parents = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # The process has just ended.
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number] = int(fields[1])
            ticks[number] = sum(map(int, fields[11:15]))  # With those of its ended children.
    below = {os.getpid()}
    while children := {n for n, parent in parents.items() if parent in below} - below:
        below |= children
    below.remove(os.getpid())
    ended = os.times()
    living = sum(ticks[number] for number in below) / _TICK
    return time.process_time() + ended.children_user + ended.children_system + living

"""An implementation with other packages, run in a separate process and environment."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence

import numpy as np

from benchmarks.by_numpy import Steps
from fedpersonal.data.clients import ClientDataset

ROOT = pathlib.Path(__file__).parents[1]


class Child:
    """Rounds of a program that reads its `Job` and waits for a line before each of them."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        train: ClientDataset,
        cohorts: Sequence[np.ndarray],
        items: np.ndarray,
        steps: Steps,
    ):
        """Starts the program, and waits until it is ready.

        Args:
            command: The program; the folder of its job is added.
            train: The clients.
            cohorts: The indices of the clients of each round.
            items: The items' vectors (items, K) before the first round.
            steps: A client's work.
        """
        self._folder = tempfile.TemporaryDirectory()
        self._path = pathlib.Path(self._folder.name)
        np.savez(
            self._path / "job.npz",
            items=items,
            cohorts=np.stack(cohorts),
            rated=train.features["item"],
            ratings=train.labels,
            offsets=train.offsets,
            **steps._asdict(),
        )
        with open(self._path / "log.txt", "wb") as log:
            self._process = subprocess.Popen(
                [*command, str(self._path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                # The program must use the packages of its environment only.
                env={name: x for name, x in os.environ.items() if name != "PYTHONPATH"},
            )
        self._answer()

    def prepare(self, round_number: int) -> None:
        """Does nothing: the program has its cohorts."""

    def run(self, prepared: None) -> tuple[float, float]:
        """Runs a round, and returns the seconds that the program has measured."""
        print(file=self._process.stdin, flush=True)
        time, processor_time = map(float, self._answer().split())
        return time, processor_time

    def weights(self) -> Sequence[np.ndarray]:
        """Waits for the program to end and returns the items' vectors."""
        self._process.communicate()
        if self._process.returncode:
            raise self._failure()
        return [np.load(self._path / "items.npy")]

    def _answer(self) -> str:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise self._failure()
        return line

    def _failure(self) -> RuntimeError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        log = (self._path / "log.txt").read_text(encoding="utf-8", errors="replace")
        return RuntimeError(f"{self._process.args!r} has ended early:\n{log[-2000:]}")

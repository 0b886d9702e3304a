"""Rounds of several sides in turn, in one process, so that all meet the same noise."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import tabulate
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.local_state.rounds import Rounds
from fedpersonal.local_state.store import LOCAL_STATE, LocalStateStore
from fedpersonal.runtime.context import LocalContext
from fedpersonal.runtime.stock import make_stock_context
from fedpersonal.trainer import Trainer

# Local runtimes by the names that tables give them: whether XLA compiles.
_COMPILE = {"plain": False, "compiled": True}
RUNTIMES = ("tff", *_COMPILE)

Name = TypeVar("Name", bound=Hashable)


class Side(Protocol):
    """Something whose rounds are timed."""

    def prepare(self, round_number: int) -> Any:
        """Returns what a round takes; it is not timed."""

    def run(self, prepared: Any) -> None:
        """Runs a round."""

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the global variables after the rounds so far."""


class Ours:
    """Rounds of a trainer in one of `RUNTIMES`."""

    def __init__(self, trainer: Trainer, runtime: str):
        """Takes the trainer; what its clients keep goes to a temporary folder."""
        self._trainer = trainer
        self._context = (
            make_stock_context() if runtime == "tff" else LocalContext(compile=_COMPILE[runtime])
        )
        store = None
        if trainer.algorithm.keeps:
            self._folder = tempfile.TemporaryDirectory()
            path = os.path.join(self._folder.name, LOCAL_STATE)
            store = LocalStateStore.open(path, trainer.model.local_variables)
        self._rounds = Rounds(trainer.process, store)
        with self._installed():
            self._state = self._rounds.initialize()

    def prepare(self, round_number: int) -> Any:
        """Returns the cohort of a round."""
        return self._trainer.cohort(round_number)

    def run(self, prepared: Any) -> None:
        """Runs a round."""
        with self._installed():
            self._state = self._rounds.next(self._state, prepared).state

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the global variables, by their names' order."""
        return tf.nest.flatten(dict(self._state.global_model_weights.trainable))

    def _installed(self) -> Any:
        return tff.framework.get_context_stack().install(self._context)


def time_rounds(sides: Mapping[Name, Side], rounds: int) -> dict[Name, list[float]]:
    """Runs each side's rounds 0 to `rounds`, and returns the seconds of each.

    Round 0 is the first to trace and compile: `median` leaves it out.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in sides}
    for round_number in range(rounds + 1):
        names = list(sides)
        start = round_number % len(names)
        for name in names[start:] + names[:start]:
            prepared = sides[name].prepare(round_number)
            begin = time.perf_counter()
            sides[name].run(prepared)
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def median(seconds: Sequence[float]) -> float:
    """Returns the median without the first call's."""
    return statistics.median(seconds[1:])


def largest_difference(ours: Side, theirs: Side) -> float:
    """Returns the largest difference between two sides' global variables."""
    pairs = zip(ours.weights(), theirs.weights())
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)


def summarize(
    sides: Mapping[str, Side], seconds: Mapping[str, Sequence[float]], *, base: str
) -> dict[str, dict[str, float]]:
    """Returns, side by side, what came of it: times, times as fast as `base`, and differences."""
    return {
        name: {
            "milliseconds": round(1000 * median(own), 2),
            "first_milliseconds": round(1000 * own[0]),
            "times_as_fast": round(median(seconds[base]) / median(own), 2),
            "largest_weight_difference": largest_difference(sides[name], sides[base]),
        }
        for name, own in seconds.items()
    }


def as_table(summary: Mapping[str, Mapping[str, float]], *, base: str) -> str:
    """Returns a summary as a table to read."""
    headers = ["side", "ms a round", "first call ms", f"times {base}", "largest difference"]
    rows = [[name, *values.values()] for name, values in summary.items()]
    return tabulate.tabulate(
        rows, headers, tablefmt="github", floatfmt=("", ".1f", ".0f", ".2f", ".1e")
    )

"""Some rounds of several sides in turn, on one machine, so that all meet the same noise."""

from __future__ import annotations

import itertools
import pathlib
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tabulate
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal import runtime
from fedpersonal.runs.kept import Rounds
from fedpersonal.training.trainer import Trainer

# What `use_runtime` takes, by the names that sides have: TFF's own runtime, and this process.
_RUNTIMES: Mapping[str, Mapping[str, Any]] = {
    "tff": {"name": "tff"},
    "plain": {"name": "local", "compile": False},
    "compiled": {"name": "local", "compile": True},
}

_ROUNDS_A_TURN = 10

# Each side's rounds: time and processor time.
Seconds = Mapping[str, Sequence[tuple[float, float]]]


class Side(Protocol):
    """Something whose rounds are timed."""

    def prepare(self, round_number: int) -> Any:
        """Returns what a round takes; it is not timed."""

    def run(self, prepared: Any) -> Any:
        """Runs a round; a side in a process of its own returns its time and processor time."""

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the global variables after the last round."""


def new_context(name: str) -> tff.framework.SyncContext:
    """Returns a TFF context of its own; `name` is `tff`, `plain` or `compiled`."""
    runtime.use_runtime(**_RUNTIMES[name])
    return tff.framework.get_context_stack().current


class Ours:
    """Rounds of a trainer whose clients keep nothing."""

    def __init__(self, trainer: Trainer, context: tff.framework.SyncContext):
        """Takes the trainer, and the context in which it computes."""
        self._trainer, self._context = trainer, context
        self._rounds = Rounds(trainer.process)
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


def time_rounds(sides: Mapping[str, Side], rounds: int) -> Seconds:
    """Runs each side's rounds 0 to `rounds`, and returns the seconds of each: time, processor time.

    Some rounds follow each other, as in training, before the next side has its turn: a first one
    finds what the others have left in the processor's caches. Round 0 is the first to trace and
    compile: medians leave it out.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    with runtime.shard_threads():  # As in `Trainer.fit`.
        for first in range(0, rounds + 1, _ROUNDS_A_TURN):
            turn = range(first, min(first + _ROUNDS_A_TURN, rounds + 1))
            for name, round_number in itertools.product(sides, turn):
                prepared = sides[name].prepare(round_number)
                begin = time.perf_counter(), time.process_time()
                told = sides[name].run(prepared)
                end = time.perf_counter(), time.process_time()
                seconds[name].append(told or (end[0] - begin[0], end[1] - begin[1]))
    return seconds


def summarize(
    sides: Mapping[str, Side],
    seconds: Seconds,
    *,
    base: str,
    compare: bool = True,
) -> dict[str, dict[str, float]]:
    """Returns, side by side, what came of it: times, times as fast as `base`, and differences.

    Args:
        sides: The sides.
        seconds: What `time_rounds` has returned.
        base: The side that the others are compared with.
        compare: Whether all began with the same weights, so that they must end alike.
    """
    medians, processor = (
        {name: statistics.median([one[kind] for one in own[1:]]) for name, own in seconds.items()}
        for kind in (0, 1)
    )
    summary = {
        name: {
            "milliseconds": round(1000 * medians[name], 2),
            "processor_milliseconds": round(1000 * processor[name], 2),
            "first_milliseconds": round(1000 * own[0][0]),
            "times_as_fast": round(medians[base] / medians[name], 2),
        }
        for name, own in seconds.items()
    }
    theirs = sides[base].weights() if compare else []
    for name, side in sides.items() if compare else ():
        differences = [np.abs(np.subtract(a, b)).max() for a, b in zip(side.weights(), theirs)]
        summary[name]["largest_weight_difference"] = float(max(differences))
    return summary


def as_table(summary: Mapping[str, Mapping[str, float]], *, base: str) -> str:
    """Returns a summary as a table to read."""
    headers = [
        "side",
        "ms a round",
        "of processors",
        "first call ms",
        f"times {base}",
        "largest difference",
    ]
    rows = [[name, *values.values()] for name, values in summary.items()]
    return tabulate.tabulate(
        rows, headers, tablefmt="github", floatfmt=("", ".1f", ".1f", ".0f", ".2f", ".1e")
    )


def write_table(
    path: pathlib.Path, summary: Mapping[str, Mapping[str, float]], *, base: str, limit: str
) -> None:
    """Writes a page's table anew: times as fast as `base`, and processor time, times `limit`'s.

    Args:
        path: The page; the table begins with a line `| one round | ...`.
        summary: What `summarize` has returned.
        base: The side that times are compared with; it computes in processes that are not counted.
        limit: The side that processor times are compared with.
    """
    least = summary[limit]["processor_milliseconds"]
    rows = []
    for name, one in sorted(summary.items(), key=lambda item: item[1]["times_as_fast"]):
        processor = "" if name == base else _two_digits(one["processor_milliseconds"] / least)
        rows.append(f"| {name} | {_two_digits(one['times_as_fast'])} | {processor} |\n")
    text = path.read_text(encoding="utf-8")
    found = re.search(r"^\| one round \|.*\n\|[- |]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    if not found:
        raise ValueError(f"{path} has no table that begins with | one round |")
    path.write_text(text[: found.start(1)] + "".join(rows) + text[found.end(1) :], encoding="utf-8")


def _two_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.1f}".replace(".0", "")

"""Timing of rounds of several implementations in turn, on one machine, under equal conditions."""

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

# Name to arguments of `use_runtime`: TFF's runtime, and this process without and with XLA.
_RUNTIMES: Mapping[str, Mapping[str, Any]] = {
    "tff": {"name": "tff"},
    "plain": {"name": "local", "compile": False},
    "compiled": {"name": "local", "compile": True},
}

_ROUNDS_A_TURN = 10

# Name of an implementation to time and processor time of each of its rounds.
Seconds = Mapping[str, Sequence[tuple[float, float]]]


class Side(Protocol):
    """An implementation whose rounds are timed."""

    def prepare(self, round_number: int) -> Any:
        """Returns the input of a round; this is not timed."""

    def run(self, prepared: Any) -> Any:
        """Runs a round; one in another process returns its time and processor time."""

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the global variables after the last round."""


def new_context(name: str) -> tff.framework.SyncContext:
    """Returns a new TFF context; `name` is `tff`, `plain` or `compiled`."""
    runtime.use_runtime(**_RUNTIMES[name])
    return tff.framework.get_context_stack().current


class TrainerRounds:
    """Rounds of a trainer whose clients have no kept values."""

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
    """Runs rounds 0 to `rounds` of each implementation; returns time and processor time in seconds.

    Several rounds run in sequence, as in training, before the next implementation has its turn,
    since the first of them finds other data in the processor's caches. Round 0 traces and compiles;
    medians exclude it.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    with runtime.shard_threads():  # As in `Trainer.fit`.
        for first in range(0, rounds + 1, _ROUNDS_A_TURN):
            turn = range(first, min(first + _ROUNDS_A_TURN, rounds + 1))
            for name, round_number in itertools.product(sides, turn):
                prepared = sides[name].prepare(round_number)
                begin = time.perf_counter(), time.process_time()
                measured = sides[name].run(prepared)
                end = time.perf_counter(), time.process_time()
                seconds[name].append(measured or (end[0] - begin[0], end[1] - begin[1]))
    return seconds


def summarize(
    sides: Mapping[str, Side],
    seconds: Seconds,
    *,
    base: str,
    compare: bool = True,
) -> dict[str, dict[str, float]]:
    """Returns times, speed-ups over `base`, and differences of weights, by implementation.

    Args:
        sides: The implementations.
        seconds: The result of `time_rounds`.
        base: The implementation that the others are compared with.
        compare: Whether all started from the same weights, so that their weights are compared.
    """
    medians, processor = (
        {
            name: statistics.median([one[kind] for one in times[1:]])
            for name, times in seconds.items()
        }
        for kind in (0, 1)
    )
    summary = {
        name: {
            "milliseconds": round(1000 * medians[name], 2),
            "processor_milliseconds": round(1000 * processor[name], 2),
            "first_milliseconds": round(1000 * times[0][0]),
            "times_as_fast": round(medians[base] / medians[name], 2),
        }
        for name, times in seconds.items()
    }
    expected = sides[base].weights() if compare else []
    for name, side in sides.items() if compare else ():
        differences = [np.abs(np.subtract(a, b)).max() for a, b in zip(side.weights(), expected)]
        summary[name]["largest_weight_difference"] = float(max(differences))
    return summary


def as_table(summary: Mapping[str, Mapping[str, float]], *, base: str) -> str:
    """Formats a summary as a table."""
    headers = [
        "implementation",
        "ms per round",
        "processor ms",
        "first call ms",
        f"speed-up over {base}",
        "largest difference",
    ]
    rows = [[name, *values.values()] for name, values in summary.items()]
    return tabulate.tabulate(
        rows, headers, tablefmt="github", floatfmt=("", ".1f", ".1f", ".0f", ".2f", ".1e")
    )


def write_table(
    path: pathlib.Path, summary: Mapping[str, Mapping[str, float]], *, base: str, limit: str
) -> None:
    """Updates a page's table: speed-ups over `base`, and processor times as multiples of `limit`'s.

    Args:
        path: The page; the table begins with a line `| one round | ...`.
        summary: The result of `summarize`.
        base: The implementation that times are compared with. It has no processor time, since it
            computes in processes that are not measured.
        limit: The implementation that processor times are compared with.
    """
    least = summary[limit]["processor_milliseconds"]
    rows = []
    for name, one in sorted(summary.items(), key=lambda item: item[1]["times_as_fast"]):
        processor = "" if name == base else _two_digits(one["processor_milliseconds"] / least)
        rows.append(f"| {name} | {_two_digits(one['times_as_fast'])} | {processor} |\n")
    text = path.read_text(encoding="utf-8")
    table = re.search(r"^\| one round \|.*\n\|[- |]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    if not table:
        raise ValueError(f"{path} has no table that begins with | one round |")
    path.write_text(text[: table.start(1)] + "".join(rows) + text[table.end(1) :], encoding="utf-8")


def _two_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.1f}".replace(".0", "")

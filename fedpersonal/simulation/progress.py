"""How far a run has come, on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping

import tqdm

_LINES_A_RUN = 10
_METRICS_A_SOURCE = 3


class Progress:
    """A progress bar on a terminal; about ten plain lines elsewhere."""

    def __init__(self, *, total_rounds: int, done: int, show: bool = True):
        """Begins.

        Args:
            total_rounds: The rounds of the whole run.
            done: How many of them earlier sessions have run.
            show: Whether to show anything.
        """
        self._total = total_rounds
        self._show = show
        self._start = time.monotonic()
        self._every = math.ceil(total_rounds / _LINES_A_RUN)
        self._latest: dict[str, float] = {}
        self._bar = None
        if show and sys.stderr.isatty():
            self._bar = tqdm.tqdm(
                total=total_rounds, initial=done, unit="round", dynamic_ncols=True, leave=True
            )

    def advance(self, round_number: int, metrics: Mapping[str, float]) -> None:
        """Shows that a round is done."""
        self._latest.update(metrics)
        if self._bar is not None:
            self._bar.set_postfix_str(_describe(self._latest), refresh=False)
            self._bar.update()
        elif self._show and (round_number % self._every == 0 or round_number == self._total):
            seconds = time.monotonic() - self._start
            counter = f"round {round_number}/{self._total}, {seconds:.0f} s"
            self._print(f"{counter}: {_describe(self._latest)}")

    def say(self, line: str) -> None:
        """Shows a line of its own."""
        if self._show:
            self._print(line)

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)


def _describe(metrics: Mapping[str, float]) -> str:
    """Returns the first metrics of the round and of the last evaluation."""
    shown: list[str] = []
    for source in ("train/", "eval/"):
        names = [name for name in metrics if name.startswith(source) and "/num_" not in name]
        shown += [f"{name} {metrics[name]:.4g}" for name in names[:_METRICS_A_SOURCE]]
    return ", ".join(shown)

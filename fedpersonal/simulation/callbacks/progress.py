"""How far a run has come, on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping

import tqdm

from fedpersonal.simulation.callbacks.callback import Callback, Run

_LINES_A_RUN = 10
_METRICS_A_SOURCE = 3


class Progress(Callback):
    """A progress bar on a terminal; about ten plain lines elsewhere."""

    def on_start(self, run: Run) -> None:
        """Begins, and says from where if the run goes on."""
        self._start = time.monotonic()
        self._latest: dict[str, float] = {}
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm.tqdm(
                total=run.total_rounds, initial=run.round_number, unit="round", dynamic_ncols=True
            )
        if run.round_number and run.stop_reason is None:
            _say(f"Going on after round {run.round_number}.")

    def on_round_end(self, run: Run) -> None:
        """Shows that a round is done."""
        self._latest.update(run.metrics)
        every = math.ceil(run.total_rounds / _LINES_A_RUN)
        if self._bar is not None:
            self._bar.set_postfix_str(_describe(self._latest), refresh=False)
            self._bar.update()
        elif run.round_number % every == 0 or run.round_number == run.total_rounds:
            seconds = time.monotonic() - self._start
            counter = f"round {run.round_number}/{run.total_rounds}, {seconds:.0f} s"
            _say(f"{counter}: {_describe(self._latest)}")

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Says why there are not more rounds, and ends the bar."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            _say(f"Stopped after round {run.saved_round}; the same command goes on from there.")
        elif error is None and run.stop_reason is not None:
            _say(f"The run has ended after round {run.round_number}: {run.stop_reason}")
        if self._bar is not None:
            self._bar.close()


def _say(line: str) -> None:
    """Shows a line of its own, above the bar if there is one."""
    tqdm.tqdm.write(line, file=sys.stderr)


def _describe(metrics: Mapping[str, float]) -> str:
    """Returns the first metrics of the round and of the last evaluation."""
    shown: list[str] = []
    for source in ("train/", "eval/"):
        names = [name for name in metrics if name.startswith(source) and "/num_" not in name]
        shown += [f"{name} {metrics[name]:.4g}" for name in names[:_METRICS_A_SOURCE]]
    if "epsilon" in metrics:
        shown.append(f"epsilon {metrics['epsilon']:.3g}")
    return ", ".join(shown)

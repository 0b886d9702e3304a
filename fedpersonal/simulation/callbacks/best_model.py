"""The best model of a run, which need not be the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedpersonal.simulation.callbacks.callback import Run
from fedpersonal.simulation.callbacks.watched_metric import WatchedMetric


class BestModel(WatchedMetric):
    """Keeps what a run had when a metric was best.

    It travels in the run's checkpoints, and makes them larger by as much.

    Attributes:
        kept: What was kept, or None before the first value.
    """

    remembers = (*WatchedMetric.remembers, "kept")

    def __init__(
        self, metric: str, *, mode: str = "min", keep: Callable[[Any], Any] = lambda state: state
    ):
        """Keeps the options.

        Args:
            metric: As of `WatchedMetric`.
            mode: As of `WatchedMetric`.
            keep: Maps a state to what is kept of it, by default all: for example its weights.
                Where clients keep local variables it must read those too, for they move on.
        """
        super().__init__(metric, mode=mode)
        self._keep = keep
        self.kept: Any = None

    def on_value(self, run: Run, *, is_better: bool) -> None:
        """Keeps a new best."""
        if is_better:
            self.kept = self._keep(run.state)

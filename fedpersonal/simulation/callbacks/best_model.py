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

    def __init__(
        self, metric: str, *, mode: str = "min", keep: Callable[[Any], Any] = lambda state: state
    ):
        """Checks and keeps the options.

        Args:
            metric: A column of `metrics.csv`, such as 'eval/rmse'.
            mode: Whether less ('min') or more ('max') is better.
            keep: Maps a state to what is kept of it, by default all: for example its weights.
                Where clients keep local variables it must read those too, for they move on.

        Raises:
            UserError: An option is out of range.
        """
        super().__init__(metric, mode=mode)
        self._keep = keep
        self.kept: Any = None

    def on_better(self, run: Run) -> None:
        """Keeps the new best."""
        self.kept = self._keep(run.state)

    def to_save(self) -> Any:
        """Returns what is kept, and how good it was."""
        return {**super().to_save(), "kept": self.kept}

    def restore(self, saved: Any) -> None:
        """Takes it back."""
        super().restore(saved)
        self.kept = saved["kept"]

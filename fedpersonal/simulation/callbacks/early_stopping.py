"""The end of a run that no longer gets better."""

from __future__ import annotations

from typing import Any

from fedpersonal.errors import UserError
from fedpersonal.simulation.callbacks.callback import Run
from fedpersonal.simulation.callbacks.watched_metric import WatchedMetric


class EarlyStopping(WatchedMetric):
    """Ends a run when a metric has not got better for a while.

    A run that has ended so is finished: opened again, it runs no further round.
    """

    def __init__(self, metric: str, *, patience: int, mode: str = "min", min_delta: float = 0.0):
        """Checks and keeps the options.

        Args:
            metric: A column of `metrics.csv`, such as 'eval/rmse'.
            patience: After so many evaluations in a row that are no better the run ends; rounds, if
                the metric is one of training.
            mode: Whether less ('min') or more ('max') is better.
            min_delta: By more than this a value must be better than the best one to count.

        Raises:
            UserError: An option is out of range.
        """
        super().__init__(metric, mode=mode, min_delta=min_delta)
        if patience < 1:
            raise UserError(f"EarlyStopping: patience must be at least 1, not {patience}.")
        self._patience = patience
        self._waited = 0

    def on_better(self, run: Run) -> None:
        """Begins to wait anew."""
        self._waited = 0

    def on_no_better(self, run: Run) -> None:
        """Ends the run if it has waited for long enough."""
        self._waited += 1
        if self._waited >= self._patience:
            best = "never a number"
            if self.best is not None:
                best = f"best after round {self.best_round}, {self.best:.6g}"
            run.stop(f"{self.metric} was no better {self._waited} times in a row; it was {best}.")

    def to_save(self) -> Any:
        """Returns what is known, and for how long it has waited."""
        return {**super().to_save(), "waited": self._waited}

    def restore(self, saved: Any) -> None:
        """Takes it back."""
        super().restore(saved)
        self._waited = saved["waited"]

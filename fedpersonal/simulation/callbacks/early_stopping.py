"""The end of a run that no longer gets better."""

from __future__ import annotations

from fedpersonal.errors import UserError
from fedpersonal.simulation.callbacks.callback import Run
from fedpersonal.simulation.callbacks.watched_metric import WatchedMetric


class EarlyStopping(WatchedMetric):
    """Ends a run when a metric has not got better for a while.

    A run that has ended so is finished: opened again, it runs no further round.
    """

    remembers = (*WatchedMetric.remembers, "_waited")

    def __init__(self, metric: str, *, patience: int, mode: str = "min", min_delta: float = 0.0):
        """Checks and keeps the options.

        Args:
            metric: As of `WatchedMetric`.
            patience: The run ends when so many values in a row are no better. 'eval/...' has a
                value in evaluated rounds only.
            mode: As of `WatchedMetric`.
            min_delta: As of `WatchedMetric`.

        Raises:
            UserError: An option is out of range.
        """
        super().__init__(metric, mode=mode, min_delta=min_delta)
        if patience < 1:
            raise UserError(f"EarlyStopping: patience must be at least 1, not {patience}.")
        self._patience = patience
        self._waited = 0

    def on_value(self, run: Run, *, is_better: bool) -> None:
        """Ends the run if it has waited for long enough."""
        self._waited = 0 if is_better else self._waited + 1
        if self._waited >= self._patience:
            since = f"has not got better since round {self.best_round} ({self.best})"
            run.stop(f"{self.metric} {'was never a number' if self.best is None else since}.")

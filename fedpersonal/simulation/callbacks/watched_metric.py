"""What follows from the best value of a metric: a run ends early, or its best model is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from absl import logging

from fedpersonal.errors import UserError
from fedpersonal.simulation.callbacks.callback import Callback, Run

_SIGNS = {"min": -1, "max": 1}


class WatchedMetric(Callback):
    """Watches a metric; a subclass says what follows from its values.

    Attributes:
        best: Its best value, or None before the first.
        best_round: The round of that value, or 0.
    """

    remembers: ClassVar[tuple[str, ...]] = ("best", "best_round")

    def __init__(self, metric: str, *, mode: str = "min", min_delta: float = 0.0):
        """Checks and keeps the options.

        Args:
            metric: A column of `metrics.csv`, such as 'eval/rmse'.
            mode: Whether less ('min') or more ('max') is better.
            min_delta: By more than this a value must be better than the best one to count.

        Raises:
            UserError: An option is out of range.
        """
        owner = type(self).__name__
        if mode not in _SIGNS:
            raise UserError(f"{owner}: mode must be one of {list(_SIGNS)}, not {mode!r}.")
        if not 0 <= min_delta < math.inf:
            raise UserError(f"{owner}: min_delta must be a number of at least 0, not {min_delta}.")
        self.metric = metric
        self.best: float | None = None
        self.best_round = 0
        self._sign = _SIGNS[mode]
        self._min_delta = min_delta
        self._is_warned = False

    def on_value(self, run: Run, *, is_better: bool) -> None:
        """Is called after a round with the metric; a value that is NaN is not better."""

    def on_start(self, run: Run) -> None:
        """Checks that there will be a metric to watch."""
        if self.metric.startswith("eval/") and not run.is_evaluated:
            raise UserError(
                f"{type(self).__name__} watches {self.metric}, but no round is evaluated."
            )

    def on_round_end(self, run: Run) -> None:
        """Looks at the metric, in rounds that have it; warns of the first that is NaN.

        Raises:
            UserError: Other metrics of its source are there, but not this one.
        """
        source = self.metric.partition("/")[0] + "/"
        others = [name for name in run.metrics if name.startswith(source)]
        if not others and source == "eval/":
            return
        if self.metric not in run.metrics:
            raise UserError(
                f"{type(self).__name__} watches {self.metric}, which round {run.round_number} "
                f"does not have; it has {', '.join(others or run.metrics)}."
            )
        value = float(run.metrics[self.metric])
        is_better = not math.isnan(value)
        if not is_better and self.best is None and not self._is_warned:
            self._is_warned = True
            logging.warning(
                "%s watches %s, which is not a number in round %d: such as an AUC of examples with "
                "one label, or a mean over no examples. Give another metric if it stays so.",
                type(self).__name__,
                self.metric,
                run.round_number,
            )
        if self.best is not None:
            is_better = self._sign * (value - self.best) > self._min_delta
        if is_better:
            self.best, self.best_round = value, run.round_number
        self.on_value(run, is_better=is_better)


class EarlyStopping(WatchedMetric):
    """Ends a run when a metric has not got better for a while.

    A run that has ended so is finished: opened again, it runs no further round.
    """

    remembers = (*WatchedMetric.remembers, "_waited")

    def __init__(self, metric: str, *, patience: int, mode: str = "min", min_delta: float = 0.0):
        """Checks and keeps the options.

        Args:
            metric: As of `WatchedMetric`, and so are `mode` and `min_delta`.
            patience: The run ends when so many values in a row are no better. 'eval/...' has a
                value in evaluated rounds only.
            mode: Whether less or more is better.
            min_delta: By how much.

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


class BestModel(WatchedMetric):
    """Keeps what a run had when a metric was best, which need not be the end.

    It travels in the run's checkpoints, and makes them larger by as much.

    Attributes:
        kept: What was kept, or None before the first value that is a number.
    """

    remembers = (*WatchedMetric.remembers, "kept")

    def __init__(
        self, metric: str, *, mode: str = "min", keep: Callable[[Any], Any] = lambda state: state
    ):
        """Keeps the options.

        Args:
            metric: As of `WatchedMetric`, and so is `mode`.
            mode: Whether less or more is better.
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

"""The best value of a metric so far."""

from __future__ import annotations

import math
from typing import ClassVar

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

    def on_value(self, run: Run, *, is_better: bool) -> None:
        """Is called after a round with the metric; a value that is NaN is not better."""

    def on_start(self, run: Run) -> None:
        """Checks that there will be a metric to watch."""
        if self.metric.startswith("eval/") and not run.is_evaluated:
            raise UserError(
                f"{type(self).__name__} watches {self.metric}, but no round is evaluated."
            )

    def on_round_end(self, run: Run) -> None:
        """Looks at the metric, in rounds that have it.

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
        if self.best is not None:
            is_better = self._sign * (value - self.best) > self._min_delta
        if is_better:
            self.best, self.best_round = value, run.round_number
        self.on_value(run, is_better=is_better)

"""Callbacks of a run's rounds, such as those that watch a metric."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import tqdm
from absl import logging

from fedpersonal.errors import TrainingError, UserError, join_words
from fedpersonal.runs.state import Callback, RunState

_SIGNS = {"min": -1, "max": 1}


class WatchedMetric(Callback):
    """Watches a metric; a subclass acts on its values.

    Attributes:
        best: The best value so far, or None before the first.
        best_round: The round of the best value, or 0.
    """

    remembers: ClassVar[tuple[str, ...]] = ("best", "best_round")

    def __init__(self, metric: str, *, mode: str = "min", min_delta: float = 0.0):
        """Checks and stores the options.

        Args:
            metric: A column of `metrics.csv`, such as 'eval/rmse'.
            mode: Whether less ('min') or more ('max') is better.
            min_delta: A value counts as better only if it beats the best one by more than this.

        Raises:
            UserError: An option is out of range.
        """
        kind = type(self).__name__
        if mode not in _SIGNS:
            raise UserError(f"{kind}: mode must be one of {list(_SIGNS)}, not {mode!r}.")
        if not 0 <= min_delta < math.inf:
            raise UserError(f"{kind}: min_delta must be a number of at least 0, not {min_delta}.")
        self.metric = metric
        self.best: float | None = None
        self.best_round = 0
        self._sign = _SIGNS[mode]
        self._min_delta = min_delta
        self._is_warned = False

    def on_value(self, run: RunState, *, is_better: bool) -> None:
        """Is called after each round that has the metric; NaN is never better."""

    def on_start(self, run: RunState) -> None:
        """Checks that the run will have the metric."""
        if self.metric.startswith("eval/") and not run.is_evaluated:
            raise UserError(
                f"{type(self).__name__} watches {self.metric}, but no round is evaluated."
            )

    def on_round_end(self, run: RunState) -> None:
        """Updates the best value, in rounds with the metric; warns if the first value is NaN.

        Raises:
            UserError: The round has other metrics of the same source (`train/` or `eval/`), but not
                this one.
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
                "%s watches %s, which is not a number in round %d, such as an AUC of examples with "
                "one label, or a mean over no examples. Choose another metric if it stays so.",
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
    """Ends a run when a metric has not improved for some time.

    The run is then finished: resumed, it runs no further round.
    """

    remembers = (*WatchedMetric.remembers, "_waited")

    def __init__(self, metric: str, *, patience: int, mode: str = "min", min_delta: float = 0.0):
        """Checks and stores the options.

        Args:
            metric: A column of `metrics.csv`, such as 'eval/rmse'.
            patience: The run ends after this number of values in a row that are no better.
                'eval/...' has a value in evaluated rounds only.
            mode: Whether less ('min') or more ('max') is better.
            min_delta: A value counts as better only if it beats the best one by more than this.

        Raises:
            UserError: An option is out of range.
        """
        super().__init__(metric, mode=mode, min_delta=min_delta)
        if patience < 1:
            raise UserError(f"EarlyStopping: patience must be at least 1, not {patience}.")
        self._patience = patience
        self._waited = 0

    def on_value(self, run: RunState, *, is_better: bool) -> None:
        """Ends the run when its patience is exhausted."""
        self._waited = 0 if is_better else self._waited + 1
        if self._waited >= self._patience:
            since = f"has not improved since round {self.best_round} ({self.best})"
            run.stop(f"{self.metric} {'was never a number' if self.best is None else since}.")


class BestModel(WatchedMetric):
    """Keeps a part of the run's state, such as its weights, from the round with the best metric.

    The run's checkpoints store the kept part, which makes them larger.

    Attributes:
        kept: The kept part, or None before the first value that is a number.
    """

    remembers = (*WatchedMetric.remembers, "kept")

    def __init__(
        self, metric: str, *, mode: str = "min", keep: Callable[[Any], Any] = lambda state: state
    ):
        """Stores the options.

        Args:
            metric: A column of `metrics.csv`, such as 'eval/rmse'.
            mode: Whether less ('min') or more ('max') is better.
            keep: Maps a state to the part to keep, for example its weights; by default, all. If
                clients keep local variables, it must also read these, because they change.
        """
        super().__init__(metric, mode=mode)
        self._keep = keep
        self.kept: Any = None

    def on_value(self, run: RunState, *, is_better: bool) -> None:
        """Keeps the state if the value is the best so far."""
        if is_better:
            self.kept = self._keep(run.state)


# Stop after this number of rounds without a usable update, or of unusable updates in a row once
# others were usable.
_ENOUGH = 10


class StopIfStuck(Callback):
    """Ends a run that learns nothing because no update is finite, or no client reports.

    Attributes:
        has_learned: Whether a client's update was used in any round so far.
        rounds_lost: Number of rounds so far that lost updates and used none.
        updates_lost: Number of updates dropped since the last round that used one.
        has_warned: Whether a warning has reported that updates are dropped.
        dropped: Names of the first clients whose updates were dropped, if available.
    """

    remembers = ("has_learned", "rounds_lost", "updates_lost", "has_warned")
    has_learned = False
    rounds_lost = 0
    updates_lost = 0
    has_warned = False
    dropped: Sequence[str] = ()

    def on_round_end(self, run: RunState) -> None:
        """Counts lost rounds and updates, and warns when the first updates are dropped.

        Raises:
            TrainingError: Weights are not finite, nothing was learned in 10 rounds or by the end,
                or 10 updates in a row were dropped after others were used.
        """
        dropped = run.metrics.get("train/num_dropped_updates", 0)
        used = run.metrics.get("train/num_examples", 1)
        self.has_learned = bool(self.has_learned or used > 0)
        self.updates_lost = 0 if used else self.updates_lost + int(dropped)
        has_no_report = bool(run.metrics.get("num_drawn")) and not run.metrics["num_reported"]
        self.rounds_lost += bool((dropped > 0 or has_no_report) and not used)
        is_last = run.round_number == run.total_rounds
        is_broken = (is_last or self.updates_lost) and not _is_finite(run.state)
        if self.has_learned and (is_broken or self.updates_lost >= _ENOUGH):
            what = "shared weights are" if is_broken else "all clients' updates are"
            raise TrainingError(
                f"The training has diverged: {what} infinite or NaN in round {run.round_number}; "
                "start a new run with a lower learning rate."
            )
        is_lost = self.rounds_lost >= _ENOUGH or (is_last and (self.rounds_lost or not used))
        if is_lost and not self.has_learned:
            why = "no reports" if has_no_report else "not finite" if dropped > 0 else "no steps"
            raise TrainingError(_nothing_learned(run.round_number, why))
        if dropped and not self.has_warned:
            self.has_warned = True
            names = f", such as {join_words(self.dropped)}" if len(self.dropped) else ""
            tqdm.tqdm.write(
                f"warning: in round {run.round_number}, {int(dropped)} of the clients' updates are "
                f"infinite or NaN, and left out{names}: look for NaN and huge numbers in the data, "
                "or lower the learning rates. Later rounds only count them, in num_dropped_updates",
                file=sys.stderr,
            )


_WHY = {
    "no reports": "no client reported. Raise round_time_limit, or drop fewer clients, and "
    "start a new run.",
    "no steps": "no sampled client has an example to train on (in its query set, if it has one), "
    "or no phase of the method takes a step. Use clients with more examples, lower the batch size, "
    "sample more clients per round, or check the phases, and start a new run.",
    "not finite": "every client's update was infinite or NaN, and was dropped. Lower the learning "
    "rates, or look for NaN and huge numbers in the data, and start a new run.",
}


def _nothing_learned(round_number: int, why: str) -> str:
    return f"Nothing was learned in rounds 1 to {round_number}: {_WHY[why]}"


def _is_finite(state: Any) -> bool:
    """Reports whether all weights of a TFF state are finite; True for states of other kinds."""
    weights = getattr(getattr(state, "global_model_weights", None), "trainable", {})
    return all(np.isfinite(value).all() for value in dict(weights).values())

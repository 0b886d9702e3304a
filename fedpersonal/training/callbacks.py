"""What takes part in the rounds of a run: callbacks, and those that watch a metric."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tqdm
from absl import logging

from fedpersonal.errors import TrainingError, UserError, listed
from fedpersonal.runs.folder import RunFolder


@dataclasses.dataclass
class Run:
    """A run under way.

    Attributes:
        folder: Where its files are.
        total_rounds: The last round.
        is_evaluated: Whether some rounds are followed by an evaluation.
        state: The state after the last finished round.
        round_number: That round, or 0 before the first.
        metrics: Its metrics by column of `metrics.csv`: 'train/loss', 'eval/rmse'. Empty in
            `on_start`.
        seconds: How long its training took.
        train_wall_seconds: The time spent in training up to it, over all sessions of the run.
        saved_round: The round of the newest checkpoint, or 0.
        stop_reason: Why the run has ended before `total_rounds`, or None.
    """

    folder: RunFolder
    total_rounds: int
    is_evaluated: bool
    state: Any
    round_number: int = 0
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    train_wall_seconds: float = 0.0
    saved_round: int = 0
    stop_reason: str | None = None

    def stop(self, reason: str) -> None:
        """Ends the run after this round, for good: if it is resumed, no further round is run.

        Args:
            reason: A line for the user.
        """
        self.stop_reason = self.stop_reason or reason


class Callback:
    """Takes part in a run; a subclass overrides what it needs.

    A round's row is written to `metrics.csv` first, then each callback sees the round, then comes
    the checkpoint if one is due. A callback may change nothing but itself and `run.stop`.

    An error in a callback ends the run as Ctrl-C does: the rounds before are saved, and the round
    is run again when the run is resumed.

    Attributes:
        remembers: The names of the attributes that checkpoints carry. A run that was killed goes on
            from its last checkpoint, so what is known from former rounds belongs here: arrays,
            numbers and texts, in containers and in classes that the process's state has, too. They
            are to be replaced, not changed in place.
    """

    remembers: ClassVar[tuple[str, ...]] = ()

    def on_start(self, run: Run) -> None:
        """Is called before the first round of a session."""

    def on_round_end(self, run: Run) -> None:
        """Is called after each round."""

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Is called when a session ends, in whatever way, after its last checkpoint.

        Args:
            run: The run.
            error: What ended the session, such as KeyboardInterrupt; None if nothing did.
        """


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
            metric: A column of `metrics.csv`, such as 'eval/rmse'.
            patience: The run ends when so many values in a row are no better. 'eval/...' has a
                value in evaluated rounds only.
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
            metric: A column of `metrics.csv`, such as 'eval/rmse'.
            mode: Whether less ('min') or more ('max') is better.
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


# So many rounds without a usable update, and so many updates after others were usable, are enough
# to know.
_ENOUGH = 10


class LearningCheck(Callback):
    """Ends a run that learns nothing: no update is finite, or nobody reports any.

    Attributes:
        has_learned: Whether a client's update was used in any round so far.
        rounds_lost: The rounds so far that lost updates and used none.
        updates_lost: The updates that were dropped since one was used.
        has_warned: Whether the user knows that updates are dropped.
        dropped: The first clients whose updates were dropped, where they are known.
    """

    remembers = ("has_learned", "rounds_lost", "updates_lost", "has_warned")
    has_learned = False
    rounds_lost = 0
    updates_lost = 0
    has_warned = False
    dropped: Sequence[str] = ()

    def on_round_end(self, run: Run) -> None:
        """Counts, warns of the first updates that are dropped, and complains when it is time.

        Raises:
            TrainingError: Weights are not finite, nothing was learned in 10 rounds or until the
                end, or 10 updates in a row were dropped after others were used.
        """
        dropped = run.metrics.get("train/num_dropped_updates", 0)
        used = run.metrics.get("train/num_examples", 1)
        self.has_learned = bool(self.has_learned or used > 0)
        self.updates_lost = 0 if used else self.updates_lost + int(dropped)
        nobody = bool(run.metrics.get("num_drawn")) and not run.metrics["num_reported"]
        self.rounds_lost += bool((dropped > 0 or nobody) and not used)
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
            why = "no reports" if nobody else "not finite" if dropped > 0 else "no steps"
            raise TrainingError(_nothing_learned(run.round_number, why))
        if dropped and not self.has_warned:
            self.has_warned = True
            names = f", such as {listed(self.dropped)}" if len(self.dropped) else ""
            tqdm.tqdm.write(
                f"warning: in round {run.round_number}, {int(dropped)} of the clients' updates are "
                f"infinite or NaN, and left out{names}: look for NaN and huge numbers in the data, "
                "or lower the learning rates. Later rounds count them in num_dropped_updates alone",
                file=sys.stderr,
            )


_WHY = {
    "no reports": "no client reported. Raise round_time_limit, or drop fewer clients, and "
    "start a new run.",
    "no steps": "no client that took part has an example to train on, in its query set where there "
    "is one, or no phase of the method takes a step. Give clients with more examples, lower the "
    "batch size, sample more clients a round, or check the phases, and start a new run.",
    "not finite": "every client's update was infinite or NaN, and was dropped. Lower the learning "
    "rates, or look for NaN and huge numbers in the data, and start a new run.",
}


def _nothing_learned(round_number: int, why: str) -> str:
    return f"Nothing was learned in rounds 1 to {round_number}: {_WHY[why]}"


def _is_finite(state: Any) -> bool:
    """Tells whether the weights of TFF's states are; of other states nothing is known."""
    weights = getattr(getattr(state, "global_model_weights", None), "trainable", {})
    return all(np.isfinite(value).all() for value in dict(weights).values())

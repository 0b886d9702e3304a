"""Where a run is, in memory and on disk."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from fedpersonal.errors import UserError
from fedpersonal.simulation import checkpoints, metric_log, progress, run_folder


@dataclasses.dataclass(frozen=True)
class Point:
    """The end of a round.

    Attributes:
        round_number: The round, or 0 before the first.
        state: The state after it.
        train_wall_seconds: The time spent in training up to it, over all sessions of the run.
    """

    round_number: int
    state: Any
    train_wall_seconds: float


class Session:
    """One stretch of a run, from its start or its last checkpoint to its end or its next stop.

    As a context manager it saves the run when something stops it. Where it is changes at one
    instant, after the row of a round is written: whatever stops a round half way leaves the former
    round's state.

    Attributes:
        at: The last finished round and what it led to.
    """

    def __init__(
        self,
        *,
        process: Any,
        folder: run_folder.RunFolder,
        total_rounds: int,
        show_progress: bool,
        saved_in: Any = None,
    ):
        """Begins the run, or goes on with it.

        Args:
            process: Its `initialize()` gives the first state.
            folder: The folder of the run.
            total_rounds: The last round.
            show_progress: Whether to report on stderr.
            saved_in: What saves and restores; None for `Checkpoints` in the folder.

        Raises:
            UserError: The run is beyond `total_rounds`.
        """
        self._checkpoints = saved_in or checkpoints.Checkpoints(folder.checkpoints)
        first_state = process.initialize()
        saved = self._checkpoints.restore(like=first_state)
        if saved is None:
            self.at = Point(0, first_state, 0.0)
        else:
            self.at = Point(saved.round_number, **saved.state)
        reached = self._saved_round = self.at.round_number
        if reached > total_rounds:
            raise UserError(
                f"total_rounds is {total_rounds}, but the run in {folder.path} is already at "
                f"round {reached}; give at least that or another folder."
            )
        self._log = metric_log.MetricLog(folder.metrics_csv, after_round=reached)
        self._progress = progress.Progress(
            total_rounds=total_rounds, done=reached, show=show_progress
        )
        if saved is not None:
            self._progress.say(f"Going on after round {reached}.")

    @property
    def median_round_seconds(self) -> float:
        """The median time of a training round, over all sessions of the run."""
        return self._log.median_seconds

    def record(
        self, *, round_number: int, state: Any, seconds: float, metrics: dict[str, Any]
    ) -> None:
        """Takes in a finished round: the state it led to, its training time, its metrics."""
        self._log.append(round_number, seconds, metrics)
        self.at = Point(round_number, state, self.at.train_wall_seconds + seconds)
        self._progress.advance(round_number, metrics)

    def save(self) -> None:
        """Writes a checkpoint, once all rows up to its round are on disk."""
        if self.at.round_number == self._saved_round:
            return
        self._log.sync()
        content = {"state": self.at.state, "train_wall_seconds": self.at.train_wall_seconds}
        self._checkpoints.save(self.at.round_number, content)
        self._saved_round = self.at.round_number

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self.save()
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                reached = self.at.round_number
                self._progress.say(
                    f"Stopped after round {reached}; the same command goes on from there."
                )
        finally:
            self._progress.close()
            self._log.close()

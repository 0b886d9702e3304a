"""What a callback is, and what a run shows to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from fedpersonal.simulation.run_folder import RunFolder


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

"""The state of a run in progress, and the base class of what acts on it after each round."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from fedpersonal.runs.folder import RunFolder


@dataclasses.dataclass
class RunState:
    """The state of a run in progress.

    Attributes:
        folder: The run's folder.
        total_rounds: The last round.
        is_evaluated: Whether an evaluation follows some of the rounds.
        state: The state after the last finished round.
        round_number: The last finished round, or 0 before the first.
        metrics: Metrics of that round by column of `metrics.csv`: 'train/loss', 'eval/rmse'. Empty
            in `on_start`.
        seconds: Duration of that round's training.
        train_wall_seconds: The time spent in training so far, over all sessions of the run.
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
        """Ends the run after this round; a resumed run then runs no further round.

        Args:
            reason: The reason, one line for the user.
        """
        self.stop_reason = self.stop_reason or reason


class Callback:
    """Base class of callbacks; a subclass overrides the methods that it needs.

    After a round, its row is written to `metrics.csv`, then each callback is called, then a
    checkpoint is saved if one is due. A callback may change its attributes and call `run.stop`, but
    change nothing else.

    An error in a callback ends the run as Ctrl-C does: the previous rounds are saved, and the round
    is run again when the run is resumed.

    Attributes:
        remembers: Names of the attributes that checkpoints store. A killed run resumes from its
            last checkpoint, so list all attributes that depend on earlier rounds: arrays, numbers
            and texts, in containers and in classes that also occur in the process's state. Replace
            these attributes, do not change them in place.
    """

    remembers: ClassVar[tuple[str, ...]] = ()

    def on_start(self, run: RunState) -> None:
        """Is called before the first round of a session."""

    def on_round_end(self, run: RunState) -> None:
        """Is called after each round."""

    def on_end(self, run: RunState, error: BaseException | None) -> None:
        """Is called when a session ends, with or without an error, after its last checkpoint.

        Args:
            run: The run.
            error: The exception that ended the session, such as KeyboardInterrupt, or None.
        """

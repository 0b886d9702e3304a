"""The checkpoints of a run."""

from __future__ import annotations

import collections
import os
from collections.abc import Sequence
from typing import Any, Protocol

from fedpersonal.errors import UserError
from fedpersonal.simulation.callbacks.callback import Callback, Run
from fedpersonal.simulation.checkpoints import Checkpoint


class Storage(Protocol):
    """Where checkpoints are, such as `simulation.checkpoints.Checkpoints`."""

    def save(self, round_number: int, state: Any) -> None:
        """Saves what was reached after a round; when this returns it is on disk."""

    def restore(self, *, like: Any) -> Checkpoint | None:
        """Returns the newest checkpoint or None; `like` is a state of the same process."""


class Saver(Callback):
    """Saves a run: every so many rounds, at its end, and when something stops it.

    It comes after all other callbacks. What would be saved changes at one instant, when they have
    all seen the round: whatever stops a round half way leaves the former round's.
    """

    def __init__(self, storage: Storage, callbacks: Sequence[Callback], *, every: int):
        """Takes what it works with.

        Args:
            storage: Where checkpoints are.
            callbacks: Those that remember something.
            every: Rounds from one checkpoint to the next.
        """
        self._storage = storage
        self._every = every
        self._reached = Checkpoint(0, {})
        # By class, and number among those of the class.
        self._callbacks: dict[str, Callback] = {}
        count: collections.Counter[str] = collections.Counter()
        for callback in callbacks:
            kind = type(callback).__name__
            count[kind] += 1
            self._callbacks[f"{kind} {count[kind]}"] = callback

    def resume(self, run: Run) -> None:
        """Puts a run, and the callbacks, where its last checkpoint was; does nothing without one.

        Args:
            run: The run, with the first state of its process.

        Raises:
            UserError: The run is beyond its last round.
        """
        checkpoint = self._storage.restore(like=run.state)
        if checkpoint is None:
            return
        self._reached, saved = checkpoint, checkpoint.state
        run.round_number = run.saved_round = checkpoint.round_number
        if run.round_number > run.total_rounds:
            raise UserError(
                f"total_rounds is {run.total_rounds}, but the run in {run.folder.path} is already "
                f"at round {run.round_number}; give at least that or another folder."
            )
        run.state = saved["state"]
        run.train_wall_seconds = saved["train_wall_seconds"]
        run.stop_reason = saved["stop_reason"]
        for name, callback in self._callbacks.items():
            for attribute, value in saved["callbacks"].get(name, {}).items():
                setattr(callback, attribute, value)

    def on_round_end(self, run: Run) -> None:
        """Notes what would be saved, and saves it if it is time."""
        content = {
            "state": run.state,
            "train_wall_seconds": run.train_wall_seconds,
            "stop_reason": run.stop_reason,
            "callbacks": {
                name: {attribute: getattr(callback, attribute) for attribute in callback.remembers}
                for name, callback in self._callbacks.items()
            },
        }
        self._reached = Checkpoint(run.round_number, content)
        if run.round_number % self._every == 0:
            self._save(run)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Saves what is not saved yet."""
        self._save(run)

    def _save(self, run: Run) -> None:
        """Writes a checkpoint, once all rows up to its round are on disk."""
        reached = self._reached
        if reached.round_number == run.saved_round:
            return
        with open(run.folder.metrics_csv, "rb") as rows:
            os.fsync(rows.fileno())
        self._storage.save(reached.round_number, reached.state)
        run.saved_round = reached.round_number

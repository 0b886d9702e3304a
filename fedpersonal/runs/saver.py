"""The callback that saves and resumes a run."""

from __future__ import annotations

import collections
import os
from collections.abc import Sequence
from typing import Any, Protocol

from fedpersonal.errors import UserError
from fedpersonal.files import damaged, read_text, report_write_errors
from fedpersonal.runs.checkpoints import Checkpoint, encode
from fedpersonal.runs.state import Callback, RunState

_ENTRIES: dict[str, type | tuple[type, ...]] = {
    "round_number": int,
    "state": object,
    "train_wall_seconds": float,
    "stop_reason": (str, type(None)),
    "callbacks": dict,
}


# Checkpoints name callbacks by class. Former names stay in them, so that older runs resume.
_SAVED_NAMES = {"StopIfStuck": "LearningCheck"}


class Storage(Protocol):
    """Storage of checkpoints, such as `runs.checkpoints.Checkpoints`."""

    def save(self, round_number: int, state: Any) -> None:
        """Saves the state after a round; when this returns it is on disk."""

    def restore(self, *, like: Any) -> Checkpoint | None:
        """Returns the newest checkpoint or None; `like` is a state of the same process."""


class Saver(Callback):
    """Saves a run at intervals, at its end, and when an error or a signal stops it.

    It is called after all other callbacks, and only then replaces the state to save. If a round is
    interrupted, the state after the previous round is saved.
    """

    def __init__(self, storage: Storage, callbacks: Sequence[Callback], *, every: int):
        """Stores the callbacks with attributes to save, and the rounds between checkpoints."""
        self._storage = storage
        self._every = every
        self._reached: Checkpoint | None = None
        # Keys are the class and the number among callbacks of the class.
        self._callbacks: dict[str, Callback] = {}
        count: collections.Counter[str] = collections.Counter()
        for callback in callbacks:
            kind = type(callback).__name__
            kind = _SAVED_NAMES.get(kind, kind)
            count[kind] += 1
            self._callbacks[f"{kind} {count[kind]}"] = callback

    def resume(self, run: RunState) -> None:
        """Restores a run and the callbacks from the last checkpoint, if there is one.

        Raises:
            UserError: The run is beyond its last round, its checkpoints are missing, or the last
                one is of another run.
        """
        checkpoint = self._storage.restore(like=run.state)
        if checkpoint is None:
            # The first checkpoint is older than the first row.
            path = run.folder.metrics_csv
            if path.exists() and read_text(path).count("\n") > 1:
                raise UserError(
                    f"{path} has rounds, but the run has no checkpoint to resume from: restore its "
                    "checkpoints, or local_state.sqlite if clients keep local variables, or give "
                    "another folder."
                )
            return
        self._reached, saved = checkpoint, checkpoint.state
        self._check_entries(run, saved)
        if saved["round_number"] != checkpoint.round_number:
            raise damaged(f"The checkpoint in {run.folder.path}")
        _check_same_arrays(run, saved["state"])
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

    def _check_entries(self, run: RunState, saved: Any) -> None:
        """Raises a UserError unless a saved state has the entries of `_content`."""
        is_ours = isinstance(saved, dict) and all(
            name in saved and isinstance(saved[name], kinds) for name, kinds in _ENTRIES.items()
        )
        by_callback = saved["callbacks"] if is_ours else {}
        for name in self._callbacks.keys() & by_callback.keys():
            values = by_callback[name]
            is_ours &= isinstance(values, dict) and {*values} <= {*self._callbacks[name].remembers}
        if not is_ours:
            raise damaged(f"The checkpoint in {run.folder.path}")

    def on_start(self, run: RunState) -> None:
        """Saves the first state of a run, so that a missing checkpoint is always an error."""
        if self._reached is None:
            self._reached = self._content(run)
            self._write(run)

    def on_round_end(self, run: RunState) -> None:
        """Replaces the state to save, and saves it if a checkpoint is due."""
        self._reached = self._content(run)
        if run.round_number % self._every == 0:
            self._save(run)

    def on_end(self, run: RunState, error: BaseException | None) -> None:
        """Saves the state, if it is not saved yet."""
        self._save(run)

    def _content(self, run: RunState) -> Checkpoint:
        content = {
            "round_number": run.round_number,
            "state": run.state,
            "train_wall_seconds": run.train_wall_seconds,
            "stop_reason": run.stop_reason,
            "callbacks": {
                name: {attribute: getattr(callback, attribute) for attribute in callback.remembers}
                for name, callback in self._callbacks.items()
            },
        }
        return Checkpoint(run.round_number, content)

    def _save(self, run: RunState) -> None:
        if self._reached is not None and self._reached.round_number != run.saved_round:
            self._write(run)

    def _write(self, run: RunState) -> None:
        """Writes a checkpoint, once all rows up to its round are on disk."""
        assert self._reached
        run.folder.check_is_ours()
        with (
            report_write_errors(run.folder.metrics_csv),
            open(run.folder.metrics_csv, "rb") as rows,
        ):
            os.fsync(rows.fileno())
        self._storage.save(self._reached.round_number, self._reached.state)
        run.saved_round = self._reached.round_number


def _check_same_arrays(run: RunState, saved: Any) -> None:
    """Raises a UserError unless a saved TFF state has the arrays of the process's first state."""
    if not hasattr(run.state, "global_model_weights"):
        return  # The process of a user's program may have states that grow.
    ours, theirs = (
        {name: (array.shape, array.dtype.name) for name, array in encode(state)[1].items()}
        for state in (run.state, saved)
    )
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name) and "/changes" not in name:
            raise UserError(
                f"The checkpoint in {run.folder.path} is of another model or algorithm: {name} is "
                f"{_show(theirs.get(name))}, not {_show(ours.get(name))}. Give another folder."
            )


def _show(kind: tuple[tuple[int, ...], str] | None) -> str:
    return "missing" if kind is None else f"{kind[1]} of shape {list(kind[0])}"

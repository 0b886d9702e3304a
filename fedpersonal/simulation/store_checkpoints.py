"""The checkpoints of a run whose clients keep local variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpersonal.errors import UserError
from fedpersonal.local_state.rounds import KeptState
from fedpersonal.local_state.store import LocalStateStore, SavedRun
from fedpersonal.simulation import checkpoints


class StoreCheckpoints:
    """The newest checkpoint, in the store: committed together with what clients have kept."""

    def __init__(self, store: LocalStateStore):
        """Takes the store."""
        self._store = store

    def save(self, round_number: int, state: Mapping[str, Any]) -> None:
        """Commits what clients have kept since the last commit, and the run's state.

        Its `state` is a `KeptState`; the rest is what `state_codec.encode` takes.
        """
        kept = state["state"]
        content = checkpoints.pack_state({**state, "state": kept.server})
        self._store.commit(kept.uncommitted(self._store), SavedRun(round_number, content))

    def restore(self, *, like: KeptState) -> checkpoints.Checkpoint | None:
        """Returns what was committed last, or None; `like` is a state of the same process.

        Raises:
            UserError: If it is damaged, or of another model.
        """
        saved = self._store.saved()
        if saved is None:
            return None
        place = f"local state store {self._store.path}: the state of round {saved.round_number} is"
        try:
            content = checkpoints.unpack_state(saved.state, like=like.server)
        except TypeError as error:
            raise UserError(f"{place} of another model or algorithm: {error}") from error
        except ValueError as error:
            raise UserError(f"{place} damaged; give another folder.") from error
        state = KeptState(saved.round_number, content["state"], {})
        return checkpoints.Checkpoint(saved.round_number, {**content, "state": state})

"""Rounds of clients that keep their local variables, on top of a process and a store.

The store stands for the clients' devices. What they keep since its last commit is carried with the
run's state, so that a round stays a function of the state that it starts from, and both are
committed together.
"""

from __future__ import annotations

import collections
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpersonal.errors import UserError
from fedpersonal.local_state.store import LocalStateStore, SavedRun
from fedpersonal.process.local_values import private_of
from fedpersonal.simulation import checkpoints


class PrivateCohort(NamedTuple):
    """A cohort of clients that bring what they have kept.

    Attributes:
        client_ids: (cohort,) the clients' names.
        members: The examples of each CLIENTS member.
        places: For each member int32 (C,): which client of the cohort each is, -1 for none.
    """

    client_ids: Sequence[str]
    members: Sequence[Any]
    places: Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class PrivateState:
    """The state of a run whose clients keep local variables.

    Attributes:
        round_number: Rounds that led to it.
        server: The process' own state.
        changes: Client to the row that it has kept since the store's last commit.
    """

    round_number: int
    server: Any
    changes: Mapping[str, bytes]

    @property
    def global_model_weights(self) -> Any:
        """The server's model, as in states without private variables."""
        return self.server.global_model_weights


class RoundOutput(NamedTuple):
    """The next state, and the round's metrics."""

    state: PrivateState
    metrics: Any


class PrivateProcess:
    """A process whose clients' local variables are in a store."""

    def __init__(self, process: Any, store: LocalStateStore):
        """Takes a process of `fedpersonal.process.kept_training`, and the store."""
        self._process = process
        self._store = store

    def initialize(self) -> PrivateState:
        """Returns the state before the first round, in which nobody has kept anything."""
        return PrivateState(0, self._process.initialize(), {})

    def next(self, state: PrivateState, cohort: PrivateCohort) -> RoundOutput:
        """Runs a round; neither the state nor the store changes."""
        known, values = read_kept(self._store, state, cohort.client_ids)
        members = [
            collections.OrderedDict(
                examples=member, private=private_of(places, known=known, values=values)
            )
            for member, places in zip(cohort.members, cohort.places)
        ]
        output = self._process.next(state.server, members)
        changes = dict(_uncommitted(self._store, state))
        for private in output.private:
            rows = self._store.pack(private["values"])
            for place, row in zip(private["places"], rows):
                if place >= 0:
                    changes[cohort.client_ids[place]] = row
        return RoundOutput(
            PrivateState(state.round_number + 1, output.state, changes), output.metrics
        )


def read_kept(
    store: LocalStateStore, state: PrivateState, client_ids: Sequence[str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns what clients have kept at a state.

    Args:
        store: The store.
        state: The last state committed to it, or one reached from there.
        client_ids: The clients.

    Returns:
        Who has kept anything, bool (n,); and local variable's name to (n, ...).
    """
    changes = _uncommitted(store, state)
    rows = store.read(client_ids)
    return store.unpack([changes.get(client, row) for client, row in zip(client_ids, rows)])


class StoreCheckpoints:
    """The checkpoints of a run whose clients keep local variables: the newest one, in the store."""

    def __init__(self, store: LocalStateStore):
        """Takes the store."""
        self._store = store

    def save(self, round_number: int, state: Mapping[str, Any]) -> None:
        """Commits what clients have kept since the last commit, and the run's state.

        Args:
            round_number: The round after which the state was reached.
            state: Its `state` is a `PrivateState`; the rest is what `state_codec.encode` takes.
        """
        private = state["state"]
        file = io.BytesIO()
        checkpoints.write_state(file, {**state, "state": private.server})
        changes = _uncommitted(self._store, private)
        self._store.commit(changes, SavedRun(round_number, file.getvalue()))

    def restore(self, *, like: PrivateState) -> checkpoints.Checkpoint | None:
        """Returns what was committed last, or None.

        Args:
            like: A state of the same process.

        Raises:
            UserError: If it is damaged.
        """
        saved = self._store.saved()
        if saved is None:
            return None
        try:
            content = checkpoints.read_state(io.BytesIO(saved.state), like=like.server)
        except checkpoints.DAMAGE as error:
            raise UserError(
                f"private store {self._store.path}: the state of round {saved.round_number} is "
                "damaged; give another folder."
            ) from error
        state = PrivateState(saved.round_number, content["state"], {})
        return checkpoints.Checkpoint(saved.round_number, {**content, "state": state})


def _uncommitted(store: LocalStateStore, state: PrivateState) -> Mapping[str, bytes]:
    """Returns a state's changes unless the store has them."""
    saved = store.saved_round
    return {} if saved == state.round_number else state.changes

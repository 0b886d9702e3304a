"""Rounds of training, with clients that rebuild their local variables or keep them in a store.

The store simulates the clients' devices. Rows that clients have kept since its last commit are part
of the run's state, so that a round is a function of the state before it. Both are committed
together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpersonal.errors import UserError
from fedpersonal.evaluation.evaluate import Kept
from fedpersonal.federated.cohort import Cohort
from fedpersonal.federated.process import Process
from fedpersonal.federated.server import Weights
from fedpersonal.model.variables import VariableSpec
from fedpersonal.runs.store import LocalStateStore


@dataclasses.dataclass(frozen=True)
class KeptState:
    """The state of a run whose clients keep local variables.

    Attributes:
        round_number: Number of rounds so far.
        server: The state of the process.
        changes: Client to the row that it has kept since the store's last commit.
    """

    round_number: int
    server: Any
    changes: Mapping[str, bytes]

    @property
    def global_model_weights(self) -> Weights:
        """The server's model, as in states without local variables."""
        return self.server.global_model_weights

    def uncommitted(self, store: LocalStateStore) -> Mapping[str, bytes]:
        """Returns the changes; empty if the store has them."""
        return {} if store.saved_round == self.round_number else self.changes


class RoundOutput(NamedTuple):
    """The next state, and the round's metrics by name."""

    state: Any
    metrics: Mapping[str, Any]


class Rounds:
    """Runs the rounds of a process, with the store of clients' kept variables."""

    def __init__(self, process: Process, store: LocalStateStore | None = None):
        """Stores a process of `build_process`, and the store, if its clients keep variables.

        Raises:
            UserError: If the store is missing, or clients keep no variables.
        """
        if process.keeps and store is None:
            raise UserError("Rounds: the clients keep local variables and need a LocalStateStore.")
        if store is not None and not process.keeps:
            raise UserError("Rounds: the clients keep no local variables; give no LocalStateStore.")
        self._process = process
        self._store = store

    def initialize(self) -> Any:
        """Returns the state before the first round: that of the process, or a `KeptState`."""
        state = self._process.initialize()
        return state if self._store is None else KeptState(0, state, {})

    def next(self, state: Any, cohort: Cohort) -> RoundOutput:
        """Runs a round; neither the state nor the store changes."""
        store = self._store
        if store is None:
            output = self._process.next(state, cohort.examples)
            return RoundOutput(output.state, output.metrics)
        output, rows = self._train(store, state, cohort)
        changes = {**state.uncommitted(store), **rows}
        if cohort.lost is not None:  # They start from the same state; the server ignores them.
            changes.update(self._train(store, state, cohort.lost)[1])
        return RoundOutput(KeptState(state.round_number + 1, output.state, changes), output.metrics)

    def _train(
        self, store: LocalStateStore, state: KeptState, cohort: Cohort
    ) -> tuple[Any, dict[str, bytes]]:
        """Returns the output of a cohort's round, and the row that each of its clients keeps."""
        has_kept, values = read_kept(store, state, cohort.client_ids)
        output = self._process.next(state.server, cohort.with_local_state(has_kept, values))
        rows = {}
        for local in output.local:
            for place, row in zip(local["places"], store.pack(local["values"])):
                if place >= 0 and place not in cohort.without_examples:
                    rows[cohort.client_ids[place]] = row
        return output, rows


def read_kept(
    store: LocalStateStore, state: KeptState, client_ids: Sequence[str] | np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the variables that clients have kept at a state.

    Args:
        store: The rows of the clients' local variables.
        state: The state of a process whose clients keep local variables: the last committed one, or
            one of a later round.
        client_ids: (n,) clients' names.

    Returns:
        Whether each client has kept anything, bool (n,); and local variable's name to (n, ...).
    """
    changes = state.uncommitted(store)
    stored = [client for client in client_ids if client not in changes]
    rows = dict(zip(stored, store.read(stored)))
    return store.unpack([changes[c] if c in changes else rows[c] for c in client_ids])


_CLIENTS_A_PART = 100


def kept_in_parts(
    kept_by: Callable[[Sequence[str]], Kept], client_ids: Sequence[str] | np.ndarray
) -> Iterator[Kept]:
    """Yields the kept variables of 100 clients at a time: those of all may be gigabytes."""
    for start in range(0, max(1, len(client_ids)), _CLIENTS_A_PART):
        yield kept_by([*client_ids[start : start + _CLIENTS_A_PART]])


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshot:
    """Clients and their local variables.

    Attributes:
        clients: (num_clients,) names.
        values: Local variable's name to (num_clients, ...).
    """

    clients: np.ndarray
    values: Mapping[str, np.ndarray]

    @classmethod
    def empty(cls, variables: Sequence[VariableSpec]) -> Snapshot:
        """Returns a snapshot without clients, for a model's local variables."""
        values = {v.name: np.zeros([0, *v.shape], v.dtype.as_numpy_dtype) for v in variables}
        return cls(np.array([], str), values)

    @classmethod
    def take(cls, store: LocalStateStore, state: KeptState) -> Snapshot:
        """Returns the variables that all clients have kept at a state."""
        clients = sorted({*store.client_ids(), *state.uncommitted(store)})
        _, values = read_kept(store, state, clients)
        return cls(np.array(clients, str), values)

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.clients.tolist())}

    def kept_by(self, client_ids: Sequence[str]) -> Kept:
        """Returns the variables that the clients with these names have kept."""
        places = np.array([self._places.get(name, -1) for name in client_ids], int)
        has_kept, values = places >= 0, {}
        for name, column in self.values.items():
            values[name] = np.zeros([len(places), *column.shape[1:]], column.dtype)
            values[name][has_kept] = column[places[has_kept]]
        return has_kept, values


def kept_with_weights(store: LocalStateStore | None) -> Callable[[Any], dict[str, Any]]:
    """Returns a function from a state to its weights and a snapshot of clients' variables."""

    def keep(state: Any) -> dict[str, Any]:
        weights = dict(state.global_model_weights.trainable)
        local = vars(Snapshot.take(store, state)) if store else None
        return {"weights": weights, "local": local and dict(local)}

    return keep

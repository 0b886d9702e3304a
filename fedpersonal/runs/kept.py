"""Rounds of training, of clients that rebuild their local variables or keep them in a store.

The store stands for the clients' devices. What they keep since its last commit is carried with the
run's state, so that a round stays a function of the state that it starts from, and both are
committed together.
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
        round_number: Rounds that led to it.
        server: The process' own state.
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
        """Returns the changes, unless the store has them."""
        return {} if store.saved_round == self.round_number else self.changes


class RoundOutput(NamedTuple):
    """The next state, and the round's metrics by name."""

    state: Any
    metrics: Mapping[str, Any]


class Rounds:
    """Runs the rounds of a process, and joins it to the store where clients keep variables."""

    def __init__(self, process: Process, store: LocalStateStore | None = None):
        """Takes a process of `build_process`, and the store, if its clients keep variables.

        Raises:
            UserError: If the store is missing or out of place.
        """
        if process.keeps and store is None:
            raise UserError("Rounds: the clients keep local variables and need a LocalStateStore.")
        if store is not None and not process.keeps:
            raise UserError("Rounds: the clients keep no local variables; give no LocalStateStore.")
        self._process = process
        self._store = store

    def initialize(self) -> Any:
        """Returns the state before the first round: the process' own, or a `KeptState`."""
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
        if cohort.lost is not None:  # They start from the same state; no server sees them.
            changes.update(self._train(store, state, cohort.lost)[1])
        return RoundOutput(KeptState(state.round_number + 1, output.state, changes), output.metrics)

    def _train(
        self, store: LocalStateStore, state: KeptState, cohort: Cohort
    ) -> tuple[Any, dict[str, bytes]]:
        """Returns what comes of a cohort's round, and the row that each of its clients keeps."""
        known, values = read_kept(store, state, cohort.client_ids)
        output = self._process.next(state.server, cohort.with_local_state(known, values))
        rows = {}
        for local in output.local:
            for place, row in zip(local["places"], store.pack(local["values"])):
                if place >= 0 and place not in cohort.without_examples:
                    rows[cohort.client_ids[place]] = row
        return output, rows


def read_kept(
    store: LocalStateStore, state: KeptState, client_ids: Sequence[str] | np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns what clients have kept at a state: the last one committed, or reached from there.

    Args:
        store: The rows of the clients' local variables.
        state: The state of a process whose clients keep local variables.
        client_ids: (n,) clients' names.

    Returns:
        Who has kept anything, bool (n,); and local variable's name to (n, ...).
    """
    changes = state.uncommitted(store)
    stored = [client for client in client_ids if client not in changes]
    rows = dict(zip(stored, store.read(stored)))
    return store.unpack([changes[c] if c in changes else rows[c] for c in client_ids])


_CLIENTS_A_PART = 100


def kept_in_parts(
    kept_by: Callable[[Sequence[str]], Kept], client_ids: Sequence[str] | np.ndarray
) -> Iterator[Kept]:
    """Yields what clients have kept, of a few at a time: all of it may be gigabytes."""
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
        """Returns what all clients have kept at a state, as `read_kept` does of some."""
        clients = sorted({*store.client_ids(), *state.uncommitted(store)})
        _, values = read_kept(store, state, clients)
        return cls(np.array(clients, str), values)

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.clients.tolist())}

    def kept_by(self, client_ids: Sequence[str]) -> Kept:
        """Returns what some clients have kept."""
        found = np.array([self._places.get(name, -1) for name in client_ids], int)
        values = {}
        for name, column in self.values.items():
            values[name] = np.zeros([len(found), *column.shape[1:]], column.dtype)
            values[name][found >= 0] = column[found[found >= 0]]
        return found >= 0, values


def kept_with_weights(store: LocalStateStore | None) -> Callable[[Any], dict[str, Any]]:
    """Returns what keeps the weights of a state, and what clients have kept: it moves on."""

    def keep(state: Any) -> dict[str, Any]:
        weights = dict(state.global_model_weights.trainable)
        local = vars(Snapshot.take(store, state)) if store else None
        return {"weights": weights, "local": local and dict(local)}

    return keep

"""What all clients have kept at one moment, as arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.model.variables import VariableSpec

if TYPE_CHECKING:
    from fedpersonal.local_state.rounds import KeptState
    from fedpersonal.local_state.store import LocalStateStore

# Who of some clients has kept anything, bool (n,); and local variable's name to (n, ...), zeros
# where nothing is kept.
Kept = tuple[np.ndarray, Mapping[str, np.ndarray]]


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
        """Returns what all clients have kept at a state, as `rounds.read_kept` does of some."""
        changes = state.uncommitted(store)
        clients = sorted({*store.client_ids(), *changes})
        rows = store.read(clients)
        _, values = store.unpack([changes.get(c, row) for c, row in zip(clients, rows)])
        return cls(np.array(clients, str), values)

    def kept_by(self, client_ids: Sequence[str]) -> Kept:
        """Returns what some clients have kept."""
        places = {name: place for place, name in enumerate(self.clients.tolist())}
        found = np.array([places.get(name, -1) for name in client_ids], int)
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

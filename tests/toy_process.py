"""A process of clients that keep two variables, in pure NumPy, and its cohorts."""

from __future__ import annotations

import collections
import types

import numpy as np
import tensorflow as tf

from fedpersonal.federated.cohort import Cohort, Shard
from fedpersonal.model.partition import VariableSpec

VARIABLES = [
    VariableSpec("vector", "vector", (3,), tf.float32, True, None),
    VariableSpec("visits", "visits", (), tf.int64, True, None),
]
IDS = [f"client {number}" for number in range(9)]

State = collections.namedtuple("State", ["weights", "rounds"])
_START = np.float32(0.5)


class Process:
    """Averages clients' vectors, which move towards the weights and the examples.

    `examples` of a shard are float32 (2, 3), a row for each of its two clients.
    """

    keeps = True

    def initialize(self):
        return State(np.zeros(3, np.float32), 0)

    def next(self, state, shards):
        kept, total, visits = [], np.zeros(3, np.float32), 0
        for shard in shards:
            brought = shard["local"]
            has_kept, places = brought["has_kept"], brought["places"]
            vector = np.where(has_kept[:, None], brought["values"]["vector"], _START)
            vector = vector * np.float32(0.7) + state.weights + shard["examples"]
            count = np.where(has_kept, brought["values"]["visits"], 0) + 1
            is_client = places >= 0
            total += vector[is_client].sum(axis=0)
            visits += int(count[is_client].sum())
            values = collections.OrderedDict(vector=vector, visits=count)
            has_kept = np.ones_like(has_kept)
            kept.append(collections.OrderedDict(places=places, has_kept=has_kept, values=values))
        weights = state.weights * np.float32(0.9) + total * np.float32(0.1)
        return types.SimpleNamespace(
            state=State(weights, state.rounds + 1),
            metrics={"loss": float(np.abs(weights).mean()), "visits": visits},
            # TFF gives no order of what stays at CLIENTS.
            local=kept[::-1],
        )


def clients_of(round_number):
    """The numbers of a round's clients: three, of whom one was in the round before."""
    return [(2 * round_number + step) % len(IDS) for step in range(3)]


def cohort(round_number):
    clients = clients_of(round_number)
    drawn = np.random.default_rng(round_number).normal(size=(2, 2, 3)).astype(np.float32)
    # One shard has both places taken, the other has one, and the second client is first.
    places = np.array([[1, 0], [-1, 2]], np.int32)
    return Cohort([IDS[number] for number in clients], [*map(Shard, places, drawn)])

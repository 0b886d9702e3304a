"""Personalises the model of a single client and returns the values of its variables."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal.client.rows import touched_tables, whole_tables
from fedpersonal.client.steps import run_phase
from fedpersonal.client.values import starting_values
from fedpersonal.data.clients import ClientDataset
from fedpersonal.federated.packing import as_examples, pack_clients
from fedpersonal.methods.phases import Phase
from fedpersonal.model.partition import PartitionedModel, Values


def personalize(
    model: PartitionedModel,
    phases: Sequence[Phase],
    weights: Mapping[str, np.ndarray],
    support: ClientDataset | None,
    *,
    kept: Mapping[str, np.ndarray] | None = None,
    batch_size: int,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Runs phases on one client's support set as a whole, as evaluation does.

    Args:
        model: The partitioned model.
        phases: The phases that personalise.
        weights: Global variable's name to value.
        support: The client's support set, a data set of one client; None where there are no phases.
        kept: Local variable's name to the value that the client has kept; None for initial values.
        batch_size: Examples of a batch.
        seed: Seed of local variables' initial values.

    Returns:
        Variable's name to value, of all variables.
    """
    shared = {v.name: tf.constant(weights[v.name]) for v in model.global_variables}
    if support is None:
        local = model.initial_local_values(seed=seed) if kept is None else kept
        sent = ((name, weights[source]) for name, source in model.copies.items())
        copies = {name: model.initial_copy(value) for name, value in sent}
        return {**_as_numpy(shared), **copies, **local}
    packed = pack_clients(model, support, [0], clients_per_shard=1, batch_size=batch_size)
    phases = tuple(dataclasses.replace(phase, data="all") for phase in phases)
    stacked = None if kept is None else {k: tf.constant(v[np.newaxis]) for k, v in kept.items()}
    examples = tf.nest.map_structure(tf.constant, packed)
    return _as_numpy(_traced(model, phases, seed)(shared, examples, stacked))


# Callers personalise one client after another, and tracing takes longer than running.
@functools.lru_cache(maxsize=4)
def _traced(
    model: PartitionedModel, phases: tuple[Phase, ...], seed: int
) -> Callable[[Values, Mapping[str, Any], Values | None], Values]:
    @tf.function(autograph=False, reduce_retracing=True)
    def run(shared: Values, packed: Mapping[str, Any], kept: Values | None) -> Values:
        examples = as_examples(model, packed)
        start = starting_values(model, shared, examples, tf.constant([seed, -1]), kept)
        values, (examples,) = touched_tables(model, phases, start, examples)
        for phase in phases:
            values = run_phase(model, phase, values, examples)
        values = whole_tables(model, phases, start, values, examples)
        personal = {name: value[0] for name, value in values.per_client.items()}
        for name in personal.keys() & model.global_tables.keys():
            # A client has the rows that it touches; alone in its shard, none is padding.
            rows = examples.rows[name][0][:, tf.newaxis]
            personal[name] = tf.tensor_scatter_nd_update(shared[name], rows, personal[name])
        return {**shared, **personal}

    return run


def _as_numpy(values: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in values.items()}

"""One client's model, personalised: the values of its variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from fedpersonal.algorithm import Phase
from fedpersonal.client.stacked import run_phase
from fedpersonal.client.values import Kept, starting_values
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.packing import as_examples, pack_clients


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
        phases: What personalises.
        weights: Global variable's name to value.
        support: The client's examples, of one client; None where there are no phases.
        kept: Local variable's name to what the client has kept; None for initial values.
        batch_size: Examples of a batch.
        seed: Seed of local variables' initial values.

    Returns:
        Variable's name to value, of all variables.
    """
    shared = {v.name: tf.constant(weights[v.name]) for v in model.global_variables}
    brought = {name: tf.constant(value) for name, value in (kept or {}).items()}
    if support is None:
        draw = tf.function(
            lambda: model.initial_values(model.local_variables, tf.constant([seed, -1]))
        )
        return _plain({**shared, **(draw() if kept is None else brought)})
    packed = pack_clients(model, support, [0], clients_per_shard=1, batch_size=batch_size)

    @tf.function(autograph=False)
    def run() -> dict[str, tf.Tensor]:
        examples = as_examples(model, tf.nest.map_structure(tf.constant, packed))
        start = None
        if kept is not None:
            own = {name: value[tf.newaxis] for name, value in brought.items()}
            start = Kept(tf.constant([True]), own)
        values = starting_values(model, shared, examples, tf.constant([seed, -1]), start)
        for phase in phases:
            values = run_phase(model, dataclasses.replace(phase, data="all"), values, examples)
        own = {name: value[0] for name, value in values.own.items()}
        for name in own.keys() & model.global_tables.keys():
            # A client has the rows that it touches; alone in its shard, none is padding.
            rows = examples.rows[name][0][:, tf.newaxis]
            own[name] = tf.tensor_scatter_nd_update(shared[name], rows, own[name])
        return {**shared, **own}

    return _plain(run())


def _plain(values: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in values.items()}

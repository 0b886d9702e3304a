"""One client's model, personalised: the values of its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from fedpersonal.algorithm import Phase
from fedpersonal.client.stacked import run_phase
from fedpersonal.client.values import starting_values
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.packing import as_examples, pack_clients


def personalize(
    model: PartitionedModel,
    phases: Sequence[Phase],
    weights: Mapping[str, np.ndarray],
    support: ClientDataset | None,
    *,
    batch_size: int,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Runs phases on one client's support set.

    Args:
        model: The partitioned model.
        phases: What personalises.
        weights: Global variable's name to value.
        support: The client's examples, of one client; None where there are no phases.
        batch_size: Examples of a batch.
        seed: Seed of local variables' initial values.

    Returns:
        Variable's name to value, of all variables.
    """
    shared = {v.name: tf.constant(weights[v.name]) for v in model.global_variables}
    if support is None:
        draw = tf.function(
            lambda: model.initial_values(model.local_variables, tf.constant([seed, -1]))
        )
        return _plain({**shared, **draw()})
    packed = pack_clients(model, support, [0], clients_per_shard=1, batch_size=batch_size)

    @tf.function(autograph=False)
    def run() -> dict[str, tf.Tensor]:
        examples = as_examples(model, tf.nest.map_structure(tf.constant, packed))
        values = starting_values(model, shared, examples, tf.constant([seed, -1]))
        for phase in phases:
            values = run_phase(model, phase, values, examples)
        own = {}
        for name, value in values.own.items():
            # Of global tables a client has the rows that it touches.
            is_part = name in model.global_tables
            rows = examples.rows[name][0][:, tf.newaxis] if is_part else None
            whole = shared[name] if is_part else None
            own[name] = tf.tensor_scatter_nd_update(whole, rows, value[0]) if is_part else value[0]
        return {**shared, **own}

    return _plain(run())


def _plain(values: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in values.items()}

"""Training without federation: one server that holds everybody's data.

The baselines of the papers' tables (Singhal et al., Table 1; Bui et al., Table 2).

Departures: a round takes as many examples as a federated one does on average, so that rounds mean
the same for both.
"""

from __future__ import annotations

import dataclasses

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.method import ClientOptions, KeepingOptions, Layers, Method
from fedpersonal.optimizers.named import build_client_optimizer


def build(options: ClientOptions, layers: Layers) -> Algorithm:
    """Returns the server's epochs."""
    del layers
    work = {**options.local_work(), "max_local_steps": None}
    return dataclasses.replace(fed_avg(**work), name="centralized")


def build_personalized(options: KeepingOptions, layers: Layers) -> Algorithm:
    """Returns the same with a learning rate of its own for users' embeddings."""
    users = build_client_optimizer("sgd", options.local_learning_rate)
    algorithm, optimizers = build(options, layers), dict.fromkeys(layers.table, users)
    phase = dataclasses.replace(algorithm.last_phase, optimizers=optimizers)
    return dataclasses.replace(algorithm, name="centralized_personalized", phases=(phase,))


METHODS = (
    Method("centralized", "Centralized", build, is_federated=False, server_optimizer="sgd"),
    Method(
        "centralized_personalized",
        "Centralized + user embeddings",
        build_personalized,
        KeepingOptions,
        needs=("table",),
        is_federated=False,
        has_table=True,
        server_optimizer="sgd",
    ),
)

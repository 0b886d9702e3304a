"""The clients that the benchmarks run on, and the preset that they run."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fedpersonal.algorithms import fed_recon
from fedpersonal.algorithms.method import Layers
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.generated.ratings import generate_ratings
from fedpersonal.data.ratings.movielens import load_movielens_1m
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.matrix_factorization import matrix_factorization
from fedpersonal.optimizers.named import build_server_optimizer
from fedpersonal.tasks.ratings.task import TASK, RatingRun
from fedpersonal.trainer import Trainer


def load(data_dir: str | None, seed: int) -> tuple[ClientDataset, int, str]:
    """Returns clients of at most 300 ratings, the number of items, and the data's name.

    Args:
        data_dir: The folder of MovieLens-1M, or None to generate ratings of its size.
        seed: Seed of generated ratings.
    """
    if data_dir:
        ratings = load_movielens_1m(data_dir)
    else:
        ratings = generate(num_items=3706, seed=seed)
    return ratings.to_client_dataset().head(300), len(ratings.item_ids), ratings.name


def generate(*, num_items: int, seed: int) -> Ratings:
    """Returns ratings of 6,040 generated users, as many as MovieLens-1M has."""
    return generate_ratings(
        num_users=6040, num_items=num_items, seed=seed, min_ratings=20, max_ratings=300
    )


def paper_options(**options: object) -> RatingRun:
    """Returns the reference hyperparameters of FedRecon, and others in their place."""
    return TASK.settle(TASK.options(algorithm="fed_recon", **options))


def paper_trainer(
    train: ClientDataset,
    *,
    num_items: int,
    options: RatingRun,
    user_initializer: tf.keras.initializers.Initializer | None = None,
    shards: int | None = None,
    **further: Any,
) -> Trainer:
    """Returns packed FedRecon with the hyperparameters of `paper_options`.

    `further` are other options of the `Trainer`.
    """
    assert options.server_optimizer and options.server_learning_rate  # Settled.
    build_model = matrix_factorization(num_items=num_items, user_initializer=user_initializer)
    return Trainer(
        PartitionedModel(
            build_model,
            local_layers=("user_embedding",),
            lookups={"item_embedding": "item"},
        ),
        fed_recon.FedRecon.build(options, Layers()),
        train,
        server_optimizer=build_server_optimizer(
            options.server_optimizer, learning_rate=options.server_learning_rate
        ),
        clients_per_round=options.clients_per_round,
        batch_size=options.client_batch_size,
        shards=shards,
        seed=options.seed,
        **further,
    )

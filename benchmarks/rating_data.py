"""The clients that the benchmarks run on, and the preset that they run."""

from __future__ import annotations

from fedpersonal.tasks.federated_training import Training, build_training
from fedpersonal.tasks.ratings.experiment import RatingOptions, build_fed_recon

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.generated.ratings import generate_ratings
from fedpersonal.data.ratings.movielens import load_movielens_1m
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.matrix_factorization import matrix_factorization
from fedpersonal.optimizers.named import build_server_optimizer
from fedpersonal.simulation.sampling import ClientSampler


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


def generate(*, num_items: int, seed: int):
    """Returns ratings of 6,040 generated users, as many as MovieLens-1M has."""
    return generate_ratings(
        num_users=6040, num_items=num_items, seed=seed, min_ratings=20, max_ratings=300
    )


def paper_training(
    train: ClientDataset, *, num_items: int, clients_per_round: int = 100, seed: int = 0
) -> Training:
    """Returns packed FedRecon with the reference hyperparameters."""
    options = RatingOptions(clients_per_round=clients_per_round, seed=seed)
    sampler = ClientSampler(
        num_clients=train.num_clients, clients_per_round=clients_per_round, seed=seed
    )
    return build_training(
        PartitionedModel(
            matrix_factorization(num_items=num_items),
            local_layers=("user_embedding",),
            lookups={"item_embedding": "item"},
        ),
        build_fed_recon(options),
        train,
        server_optimizer=build_server_optimizer(
            options.server_optimizer, learning_rate=options.server_learning_rate
        ),
        sample=sampler.sample,
        clients_per_round=clients_per_round,
        batch_size=options.client_batch_size,
        seed=seed,
    )

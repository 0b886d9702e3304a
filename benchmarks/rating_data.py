"""The training clients that the benchmarks run on."""

from __future__ import annotations

from fedpersonal.datasets.client_dataset import ClientDataset
from fedpersonal.datasets.movielens import load_movielens_1m
from fedpersonal.datasets.ratings import to_client_dataset
from fedpersonal.datasets.synthetic import generate_ratings


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
    return to_client_dataset(ratings).head(300), len(ratings.item_ids), ratings.name


def generate(*, num_items: int, seed: int):
    """Returns ratings of 6,040 generated users, as many as MovieLens-1M has."""
    return generate_ratings(
        num_users=6040, num_items=num_items, seed=seed, min_ratings=20, max_ratings=300
    )

"""A small model of ratings, and ratings for it."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))  # What the table of rounds is made of.

NUM_ITEMS = 7


@pytest.fixture(name="ratings", scope="session")
def _ratings(draw_ratings):
    """Those of five clients; batches of 3 are full, filled up, and alone."""
    return draw_ratings((11, 3, 1, 16, 6), num_items=NUM_ITEMS, seed=3)


@pytest.fixture(name="model", scope="session")
def _model():
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.suite.models.factorization import matrix_factorization

    return PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, embedding_dim=2, use_biases=True),
        local_layers=["user_embedding", "user_bias"],
        lookups={"item_embedding": "item", "item_bias": "item"},
    )

"""A prediction of SVD++ against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.model.lookups import check_lookups
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.factorization import matrix_factorization

ITEM = np.array([4, 0, 2], np.int32)
USER = np.array([1, 1, 0], np.int32)
RATED = np.array([[3, 1, 4], [3, 0, 0], [2, 2, 2]], np.int32)
# The last user has rated nothing.
NUM_RATED = np.array([3, 1, 0], np.int32)
BUILD = matrix_factorization(
    num_items=5, num_users=2, embedding_dim=2, use_biases=True, rated_places=3, mean_rating=3.0
)


def test_what_a_user_has_rated_adds_to_its_embedding():
    model = BUILD()
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    of = {w.name.split("/")[0]: w.numpy() for w in model.weights}
    found = model({"item": ITEM, "user": USER, "rated": RATED, "num_rated": NUM_RATED}).numpy()
    for row, (item, user, count) in enumerate(zip(ITEM, USER, NUM_RATED)):
        bag = of["rated_embedding"][RATED[row, :count]].sum(0) / np.sqrt(max(count, 1))
        expected = (of["user_embedding"][user] + bag) @ of["item_embedding"][item]
        expected += 3 + of["user_bias"][user, 0] + of["item_bias"][item, 0]
        assert found[row] == pytest.approx(expected, rel=1e-5)


def test_it_starts_as_the_model_without():
    """So `rated_embedding` is zeros, and it is a table of which rows in use suffice."""
    assert not BUILD().get_layer("rated_embedding").get_weights()[0].any()
    tables = {"item_embedding": "item", "item_bias": "item", "rated_embedding": "rated"}
    check_lookups(PartitionedModel(BUILD, lookups=tables))

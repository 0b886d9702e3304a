"""What clients do before they predict: rebuild what they lack, fine-tune, or neither."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

from fedpersonal.data.splits import split_support_query
from fedpersonal.evaluation.evaluate import Evaluator, evaluate_clients
from fedpersonal.methods.algorithm import GradientPhase
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.factorization import matrix_factorization

SGD = tff.learning.optimizers.build_sgdm(0.1)
REBUILDING, FINETUNING = (GradientPhase(v, "all", SGD, epochs=2) for v in ("local", "global"))
BATCH_SIZE, NUM_ITEMS = 3, 6


@pytest.fixture(name="evaluator", scope="module")
def _evaluator():
    model = PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, embedding_dim=2), local_layers=["user_embedding"]
    )
    return Evaluator(model, (REBUILDING,), (FINETUNING,), BATCH_SIZE, "stacked", 2, seed=4)


def test_only_clients_that_have_kept_nothing_rebuild(evaluator):
    assert evaluator.personalization(True) == (FINETUNING,)
    assert evaluator.personalization(False) == (REBUILDING, FINETUNING)


@pytest.mark.parametrize("together", [2, 0])
def test_clients_are_evaluated_as_they_personalise(evaluator, draw_ratings, together):
    ratings = draw_ratings((4, 3, 17, 9), num_items=NUM_ITEMS, seed=9)
    support, query = split_support_query(ratings, batch_size=BATCH_SIZE)
    weights = evaluator.model.initial_global_values(seed=1)
    evaluator = dataclasses.replace(evaluator, together=together)

    def losses(phases):
        results = evaluate_clients(
            evaluator.model, phases, weights, support, query, batch_size=BATCH_SIZE, seed=4
        )
        return results.after["loss"]

    found = evaluator.pack(support, query, has_kept=False)(weights).after["loss"]
    np.testing.assert_allclose(found, losses((REBUILDING, FINETUNING)), rtol=1e-5)
    assert not np.allclose(found, losses((FINETUNING,)))
    alone = evaluator.pack(support, query, (), has_kept=False, with_before=False)(weights)
    assert alone.before is None
    np.testing.assert_allclose(alone.after["loss"], losses(()), rtol=1e-5)

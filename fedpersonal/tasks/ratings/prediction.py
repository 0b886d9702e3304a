"""Rating prediction: models, algorithms and evaluations put together (Singhal et al., 5.1.1)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedpersonal.algorithm import Algorithm
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.evaluation.evaluate import ClientResults, build_evaluation
from fedpersonal.model.metrics import RATING_METRICS, rank_of_first, ranking_metrics
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.matrix_factorization import matrix_factorization
from fedpersonal.tasks.ratings.data import EvaluationData, RatingData

_EVALUATED_TOGETHER = 100


def one_user_model(data: RatingData, **options: Any) -> PartitionedModel:
    """Returns matrix factorization with the user's embedding and bias as local variables.

    Args:
        data: The ratings, for the number of items.
        **options: Of `matrix_factorization`.
    """
    biases = bool(options.get("use_biases"))
    return PartitionedModel(
        matrix_factorization(num_items=data.num_items, **options),
        local_layers=("user_embedding", "user_bias") if biases else ("user_embedding",),
        metrics=RATING_METRICS,
        lookups={"item_embedding": "item", **({"item_bias": "item"} if biases else {})},
    )


def all_users_model(data: RatingData, **options: Any) -> PartitionedModel:
    """Returns matrix factorization with a global table of users, each owning its row.

    Args:
        data: The ratings, for the numbers of users and items.
        **options: Of `matrix_factorization`.
    """
    lookups = {"item_embedding": "item", "user_embedding": "user"}
    if options.get("use_biases"):
        lookups.update(item_bias="item", user_bias="user")
    return PartitionedModel(
        matrix_factorization(num_items=data.num_items, num_users=data.num_users, **options),
        metrics=RATING_METRICS,
        lookups=lookups,
        owned_tables=[layer for layer, feature in lookups.items() if feature == "user"],
    )


class RatingEvaluation:
    """Evaluates ratings and rankings of a fixed set of clients, again and again."""

    def __init__(
        self,
        model: PartitionedModel,
        algorithm: Algorithm,
        data: EvaluationData,
        *,
        batch_size: int,
        seed: int = 0,
    ):
        """Packs the clients and builds the computation.

        Args:
            model: The partitioned model.
            algorithm: Its `personalization` comes before prediction.
            data: The clients.
            batch_size: Examples a batch of the support set.
            seed: Seed of local variables' initial values.
        """
        self._data = data
        self._build = functools.partial(
            build_evaluation,
            model,
            algorithm.personalization(model),
            batch_size=batch_size,
            clients=_EVALUATED_TOGETHER,
            seed=seed,
        )
        self._evaluate_ratings = self._build(data.support, data.query)

    @functools.cached_property
    def _evaluate_ranking(self) -> Callable[[Mapping[str, np.ndarray]], ClientResults]:
        """Only the test ranks, so this is built when it does."""
        data = self._data
        items, width = data.candidates.reshape(-1), data.candidates.shape[1]
        users = data.query.features["user"][data.query.offsets[:-1]] if len(items) else items
        candidates = ClientDataset(
            client_ids=data.query.client_ids,
            offsets=np.arange(0, len(items) + 1, width),
            features={"item": items, "user": np.repeat(users, width)},
            labels=np.zeros(len(items), np.float32),
        )
        return self._build(data.ranking_support, candidates)

    def ratings(self, weights: Mapping[str, np.ndarray]) -> ClientResults:
        """Predicts every client's query ratings."""
        return self._evaluate_ratings(weights)

    def ranking(self, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Ranks every client's candidates: `hr@10` and `ndcg@10`, each (num_clients,)."""
        scores = self._evaluate_ranking(weights).predictions
        return ranking_metrics(rank_of_first(scores), at=10)

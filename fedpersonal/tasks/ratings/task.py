"""Rating prediction as a task: its options, its models, its two evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.data import movielens
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.ratings import Ratings, keep_users
from fedpersonal.options import option
from fedpersonal.runs.tested import TestReport
from fedpersonal.tasks.items import FactorizationOptions, ItemTask, factorization
from fedpersonal.tasks.options import RunOptions, TableOptions
from fedpersonal.tasks.ratings.data import RatingData, add_rated, is_ordered, split_ratings
from fedpersonal.tasks.task import Built, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.evaluation.guess import Guess
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.report.samples import Recommendations
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.training.clients import ReadWhenDrawn
    from fedpersonal.training.trained import TrainedModel

    RatingExperiment = Experiment["RatingRun", RatingData]


class RatingOptions(TableOptions, FactorizationOptions):
    """The ratings, and the matrix factorization of them."""

    dataset: str = option(
        "auto",
        "auto: MovieLens-1M from --data_dir if that is given, else MovieLens-100K, which is "
        "installed. insteval: students and lecturers, in the package pydataset.",
        choices=movielens.SOURCES.choices,
    )
    ratings_file: str | None = option(
        None,
        "An own table of ratings, in place of --dataset. --user_column, --item_column, "
        "--rating_column and --time_column say what its columns are called.",
        in_help=True,
    )
    item_column: str = option("item", "Its column of items.")
    rating_column: str = option("rating", "Its column of ratings.")
    min_ratings: int = option(2, "Users with fewer ratings are left out.", at_least=1)
    max_ratings: int = option(0, "Users with more ratings are left out; 0: none.", at_least=0)
    evaluate_on: str = option(
        "unseen",
        "Evaluate users who never take part, or the last ratings of those who do.",
        choices=("unseen", "seen"),
        in_help=True,
    )
    split_by: str = option(
        "auto",
        "What seen users are tested on: their last ratings, or random ones; so is the item ranked. "
        "auto: time where the data have it.",
        choices=("auto", "time", "random"),
    )
    test_draws: int = option(
        0, "Test on so many draws of --clients_per_draw too, for mean and deviation.", at_least=0
    )
    clients_per_draw: int = option(50, "Test users of such a draw.", at_least=1)
    max_ratings_per_user: int = option(300, "Ratings kept of a user; 0: all.", at_least=0)
    pool_batch_size: int = option(100, "Examples of a batch of centralized.", at_least=1)
    rating_offset: float | None = option(
        None,
        "Constant added to each prediction; 0: none. [default: the mean rating of the clients that "
        "train]",
    )
    rating_scale: float | None = option(
        None,
        "Rating points that a score of 1 adds to it; the loss is in scores. [default: 1; a quarter "
        "of the training ratings' range where that is over 20]",
        above=0,
    )
    rated_items: int = option(
        0,
        "Add the embeddings of up to so many items that a user has rated to the user's own "
        "(SVD++); 0: none.",
        at_least=0,
        at_most=1_000,
    )

    def check(self) -> None:
        """Raises a `UserError` if draws of test users have a size, and there are none."""
        super().check()
        if not self.test_draws:
            self.refuse_idle("clients_per_draw", where="without --test_draws")


class RatingRun(RatingOptions, RunOptions):
    """These options, and those of any run."""


# Learning rates that suit ratings of 1 to 5 diverge where errors are larger than this.
_FAR = 20.0
# A constant farther from the mean rating than this share of the ratings' deviation does not fit.
_NEAR = 0.5
# MovieLens' ratings are stars; those of other data have no unit that is known.
_STARS, _POINTS = "in stars", "in units of the rating"


class RatingTask(ItemTask[RatingRun, Ratings, RatingData]):
    """Matrix factorization of ratings (Singhal et al., section 5.1.1).

    Where no layer is local, users' embeddings are rows of a table that the server has. Evaluated
    users of whom it has no row get a model of their own, whose user layers they rebuild.
    """

    name = "movielens"
    own_options = RatingOptions
    # The paper leaves these to its appendix C.1; they are those of its reference code.
    defaults = {"method": "fed_recon", "max_reconstruction_steps": 50, "max_local_steps": 50}
    examples = "ratings"
    metrics = ("rmse", "mae", "accuracy", "hr@10", "ndcg@10")
    meanings = {
        "rmse": f"root of the mean squared error, {_POINTS}",
        "mae": f"mean absolute error, {_POINTS}",
        "accuracy": "share of predictions within 0.5 of the rating",
    }
    predicts = (
        "Ratings of {num_items} items by {num_users} users, from the other ratings of each user"
    )
    sources = movielens.SOURCES

    def evaluated_local_layers(self, options: RatingRun) -> tuple[str, ...]:
        """Returns the user's layers, also of unseen users whose model has a table."""
        layers = super().evaluated_local_layers(options)
        return layers or (self.layers.embedding if options.evaluate_on == "unseen" else ())

    def is_finetuning_idle(self, options: RatingRun) -> bool:
        """Tells whether rows of items alone are fine-tuned: a user rates each item once."""
        method = self.method(options)
        is_shared_alone = {*self.layers.embedding} <= {*method.local_layers(options, self.layers)}
        return method.finetunes == "global" and is_shared_alone and not options.rated_items

    def read(self, options: RatingRun) -> Ratings:
        """Reads the ratings that options name."""
        ratings = movielens.load(
            *options.find_table(movielens.SOURCES),
            min_ratings=options.min_ratings,
            columns=options.columns("user", "item", "rating", "time"),
        )
        is_ordered(ratings, options)
        most = options.max_ratings or None
        ratings = keep_users(ratings, min_ratings=options.min_ratings, max_ratings=most)
        return options.choose_users(ratings)

    def meanings_of(self, known: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns what metrics mean; MovieLens' ratings are stars."""
        if not str(known.get("dataset")).startswith("movielens"):
            return self.meanings
        stars = {name: text.replace(_POINTS, _STARS) for name, text in self.meanings.items()}
        return {**stars, "accuracy": "share of predictions within half a star of the rating"}

    def replace_presets(
        self, source: Ratings, options: RatingRun, set_by: Mapping[str, str]
    ) -> tuple[RatingRun, list[str]]:
        """Leaves out a preset's constant that does not fit other ratings than MovieLens'."""
        offset, preset = options.rating_offset, set_by.get("rating_offset")
        if preset is None or _is_near(source, offset) or source.name.startswith("movielens"):
            return options, []
        line = (
            f"the mean rating is {source.ratings.mean():.3g}, so that the --rating_offset="
            f"{offset:g} of {preset} does not fit: predictions start at the mean training rating"
        )
        return options.replace(rating_offset=None), [line]

    def warnings(self, source: Ratings, options: RatingRun) -> list[str]:
        """Says where predictions start far from the ratings."""
        low, high = float(source.ratings.min()), float(source.ratings.max())
        mean = float(source.ratings.mean())
        offset = mean if options.rating_offset is None else options.rating_offset
        farthest, scale = max(abs(low - offset), abs(high - offset)), options.rating_scale
        if scale is not None and farthest / scale > _FAR:
            return [
                f"ratings are from {low:g} to {high:g}, which is far from --rating_offset="
                f"{offset:g} for --rating_scale={scale:g}: leave both out, or expect large errors"
            ]
        # The paper's presets start MovieLens at 0.
        is_papers = not offset and source.name.startswith("movielens")
        if _is_near(source, options.rating_offset) or is_papers:
            return []
        return [
            f"the mean rating is {mean:.3g} but --rating_offset is {offset:g}; pass "
            f"--rating_offset={mean:.3g}, or leave it out"
        ]

    def sizes(self, data: RatingData) -> dict[str, Any]:
        """Returns the numbers of users and items, and the training ratings' mean and range."""
        ratings = data.train.labels
        mean = float(ratings.mean(dtype=np.float64))
        return {**super().sizes(data), "mean_rating": mean, "rating_range": float(np.ptp(ratings))}

    def split(self, source: Ratings, options: RatingRun) -> RatingData:
        """Splits the ratings."""
        return split_ratings(source, options)

    def build(self, known_sizes: Mapping[str, Any], options: RatingRun) -> Built:
        """Builds as any task does; the penalties of ridge are of scores, as the loss is."""
        _, scale = _settled(SimpleNamespace(**known_sizes), options)
        l2, bias_l2 = options.ridge_l2, options.ridge_bias_l2
        return super().build(
            known_sizes,
            options.replace(
                ridge_l2=l2 * scale**2,
                ridge_bias_l2=None if bias_l2 is None else bias_l2 * scale**2,
            ),
        )

    def build_model(
        self, sizes: SimpleNamespace, options: RatingRun, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns one user's model where layers are local, else one with a table of all users."""
        from fedpersonal.model.metrics import RATING_METRICS
        from fedpersonal.models.factorization import squared_error

        offset, scale = _settled(sizes, options)
        return factorization(
            sizes,
            options,
            local_layers,
            loss=squared_error(scale),
            metrics=RATING_METRICS,
            mean_rating=offset,
            scale=scale,
            rated_places=min(options.rated_items, sizes.num_items),
        )

    def training_clients(
        self, model: PartitionedModel, train: ClientDataset | ReadWhenDrawn, options: RatingRun
    ) -> ClientDataset | ReadWhenDrawn:
        """Returns the clients that train, with what they have rated where the model asks."""
        if isinstance(train, ClientDataset):
            train = _with_rated(model, train, train)
        return super().training_clients(model, train, options)

    def for_evaluation(
        self, model: PartitionedModel, part: EvaluationSet
    ) -> tuple[ClientDataset, ClientDataset]:
        """Returns both sets, with what users rated in the support set where the model asks."""
        support, query = (
            _with_rated(model, own, part.support) for own in (part.support, part.query)
        )
        return self.for_model(model, support), self.for_model(model, query)

    def evaluated_model(
        self, sizes: SimpleNamespace, options: RatingRun, model: PartitionedModel
    ) -> PartitionedModel:
        """Returns one user's model for users of whom a table has no row."""
        if model.local_variables or options.evaluate_on == "seen":
            return model
        return self.build_model(sizes, options, self.layers.embedding)

    def pool(self, options: RatingRun, num_clients: int) -> tuple[int, int]:
        """A round of a server is a pass over all ratings."""
        return options.pool_batch_size, 1

    def test(self, experiment: RatingExperiment, trained: TrainedModel) -> TestReport:
        """Predicts the test users' ratings, and ranks a held-out item of each among others."""
        from fedpersonal.evaluation.results import over_draws
        from fedpersonal.tasks.items import query_metrics, ranked_means

        test = experiment.data.test
        assert test.ranking
        results = experiment.evaluation(test)(trained)
        scores = experiment.evaluation(test.ranking)(trained).predictions
        assert scores is not None  # Stacked packing gives them unasked.
        counts, suffix = test.ranking.query.counts, experiment.data.source.candidates_suffix
        ranking = query_metrics(scores, counts, suffix)
        told = {"draws": over_draws(results, test.draws)} if len(test.draws) else {}
        return TestReport(results, ranked_means(ranking), ranking, told)

    def guesses(self, experiment: RatingExperiment, part: EvaluationSet) -> dict[str, Guess]:
        """Predicts by means of items and users, and ranks at random."""
        from fedpersonal.evaluation.guess import CHANCE
        from fedpersonal.tasks.ratings.guesses import guess_ratings, rank_by_chance, score_guess

        data = experiment.data
        guessed = guess_ratings(data, part).items()
        found = {name: score_guess(part.query, values) for name, values in guessed}
        return {**found, CHANCE: rank_by_chance(data)} if part is data.test else found

    def recommend(
        self, experiment: RatingExperiment, trained: TrainedModel, results: ClientResults
    ) -> Recommendations:
        """Scores the items for some test users; held out is what they are tested on."""
        from fedpersonal.tasks.items import recommend

        return recommend(experiment, trained, results, held_out=experiment.data.test.query)

    def describe(self, experiment: RatingExperiment) -> dict[str, Any]:
        """Says whom the summary is of, and from where predictions start."""
        sizes = SimpleNamespace(**self.sizes(experiment.data))
        offset, scale = _settled(sizes, experiment.options)
        return {
            "evaluate_on": experiment.options.evaluate_on,
            "rating_offset": offset,
            "rating_scale": scale,
        }


def _settled(sizes: SimpleNamespace, options: RatingRun) -> tuple[float, float]:
    """Returns the constant and the scale of predictions: those of the options, or of the data."""
    offset, scale = options.rating_offset, options.rating_scale
    if offset is None:
        offset = sizes.mean_rating
    if scale is None:
        scale = 1.0 if sizes.rating_range <= _FAR else sizes.rating_range / 4
    return offset, scale


def _is_near(source: Ratings, offset: float | None) -> bool:
    """Tells whether a constant, None for the mean, fits the ratings."""
    if offset is None:
        return True
    return abs(float(source.ratings.mean()) - offset) <= _NEAR * max(source.ratings.std(), 1e-6)


def _with_rated(
    model: PartitionedModel, dataset: ClientDataset, known: ClientDataset
) -> ClientDataset:
    if "rated" not in model.input_spec:
        return dataset
    return add_rated(dataset, known, places=model.input_spec["rated"].shape[1])


TASK = RatingTask()

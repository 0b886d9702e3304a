"""The task of rating prediction: options, models, and two evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.suite.readers import movielens
from fedpersonal.suite.readers.ratings import Ratings, keep_users
from fedpersonal.suite.tasks.items import ItemTask, factorization
from fedpersonal.suite.tasks.ratings.data import RatingData, add_rated, is_ordered, split_ratings
from fedpersonal.suite.tasks.ratings.options import RatingOptions, RatingRun
from fedpersonal.suite.tasks.task import EvaluationSet, TaskBuild
from fedpersonal.training.tested import EvaluationReport

if TYPE_CHECKING:
    from fedpersonal.evaluation.baselines import Baseline
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.report.samples import Recommendations
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.clients import LazyClients
    from fedpersonal.training.trained import TrainedModel

    RatingExperiment = Experiment["RatingRun", RatingData]


# Learning rates for ratings of 1 to 5 diverge if errors are larger than this.
_MAX_ERROR = 20.0
# A constant fits if it is nearer to the mean rating than this share of the standard deviation.
_OFFSET_TOLERANCE = 0.5
# MovieLens' ratings are stars; the unit of other data is unknown.
_STARS, _POINTS = "in stars", "in units of the rating"


class RatingTask(ItemTask[RatingRun, Ratings, RatingData]):
    """Matrix factorization of ratings (Singhal et al., section 5.1.1).

    Without local layers, users' embeddings are rows of a server's table. Evaluated users without a
    row get a model for a single user, whose user layers they rebuild.
    """

    name = "movielens"
    usage = """FedRecon and its rivals on MovieLens, or on any table of ratings.

fedpersonal movielens --total_rounds=500 --data_dir=path/to/ml-1m"""
    extra_options = RatingOptions
    # The paper refers to its appendix C.1 for these; they are those of its reference code.
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
        """Returns the local layers; with a table, the user's layers if users are unseen."""
        layers = super().evaluated_local_layers(options)
        return layers or (self.layers.embedding if options.evaluate_on == "unseen" else ())

    def is_finetuning_idle(self, options: RatingRun) -> bool:
        """Returns whether only rows of items are fine-tuned, as a user rates each item once."""
        method = self.method(options)
        has_local_user = {*self.layers.embedding} <= {*method.local_layers(options, self.layers)}
        return method.finetunes == "global" and has_local_user and not options.rated_items

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

    def meanings_of(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the meanings of metrics; MovieLens' ratings are stars."""
        if not str(settings.get("dataset")).startswith("movielens"):
            return self.meanings
        stars = {name: text.replace(_POINTS, _STARS) for name, text in self.meanings.items()}
        return {**stars, "accuracy": "share of predictions within half a star of the rating"}

    def replace_presets(
        self, source: Ratings, options: RatingRun, set_by: Mapping[str, str]
    ) -> tuple[RatingRun, list[str]]:
        """Drops a preset's constant if it does not fit ratings that are not MovieLens'."""
        offset, preset = options.rating_offset, set_by.get("rating_offset")
        if preset is None or _is_near(source, offset) or source.name.startswith("movielens"):
            return options, []
        line = (
            f"the mean rating is {source.ratings.mean():.3g}, so that the --rating_offset="
            f"{offset:g} of {preset} does not fit: predictions start at the mean training rating"
        )
        return options.replace(rating_offset=None), [line]

    def warnings(self, source: Ratings, options: RatingRun) -> list[str]:
        """Returns a warning if initial predictions are far from the ratings."""
        low, high = float(source.ratings.min()), float(source.ratings.max())
        mean = float(source.ratings.mean())
        offset = mean if options.rating_offset is None else options.rating_offset
        farthest, scale = max(abs(low - offset), abs(high - offset)), options.rating_scale
        if scale is not None and farthest / scale > _MAX_ERROR:
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

    def build(self, data_sizes: Mapping[str, Any], options: RatingRun) -> TaskBuild:
        """Builds as any task does, with penalties of ridge regression in scores, as the loss."""
        _, scale = _offset_and_scale(SimpleNamespace(**data_sizes), options)
        l2, bias_l2 = options.ridge_l2, options.ridge_bias_l2
        return super().build(
            data_sizes,
            options.replace(
                ridge_l2=l2 * scale**2,
                ridge_bias_l2=None if bias_l2 is None else bias_l2 * scale**2,
            ),
        )

    def build_model(
        self, sizes: SimpleNamespace, options: RatingRun, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns one user's model if layers are local, else one with a table of all users."""
        from fedpersonal.model.metrics import RATING_METRICS
        from fedpersonal.suite.models.factorization import squared_error

        offset, scale = _offset_and_scale(sizes, options)
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
        self, model: PartitionedModel, train: ClientDataset | LazyClients, options: RatingRun
    ) -> ClientDataset | LazyClients:
        """Returns the clients that train, with their rated items if the model uses them."""
        if isinstance(train, ClientDataset):
            train = _with_rated(model, train, train)
        return super().training_clients(model, train, options)

    def for_evaluation(
        self, model: PartitionedModel, part: EvaluationSet
    ) -> tuple[ClientDataset, ClientDataset]:
        """Returns both sets, with the items of the support set if the model uses rated items."""
        support, query = (
            _with_rated(model, dataset, part.support) for dataset in (part.support, part.query)
        )
        return self.for_model(model, support), self.for_model(model, query)

    def evaluated_model(
        self, sizes: SimpleNamespace, options: RatingRun, model: PartitionedModel
    ) -> PartitionedModel:
        """Returns one user's model if users are unseen and the trained model has a table."""
        if model.local_variables or options.evaluate_on == "seen":
            return model
        return self.build_model(sizes, options, self.layers.embedding)

    def central_batching(self, options: RatingRun, num_clients: int) -> tuple[int, int]:
        """Returns the batch size; a round is a pass over all ratings."""
        return options.pool_batch_size, 1

    def test(self, experiment: RatingExperiment, trained: TrainedModel) -> EvaluationReport:
        """Predicts the test users' ratings, and ranks a held-out item of each user among others."""
        from fedpersonal.evaluation.results import spread_over_samples
        from fedpersonal.suite.tasks.items import query_metrics, ranked_means

        test = experiment.data.test
        assert test.ranking
        results = experiment.evaluation(test)(trained)
        scores = experiment.evaluation(test.ranking)(trained).predictions
        assert scores is not None  # Stacked packing always returns predictions.
        counts, suffix = test.ranking.query.counts, experiment.data.source.candidates_suffix
        ranking = query_metrics(scores, counts, suffix)
        samples = test.client_samples
        description = {"draws": spread_over_samples(results, samples)} if len(samples) else {}
        return EvaluationReport(results, ranked_means(ranking), ranking, description)

    def baselines(self, experiment: RatingExperiment, part: EvaluationSet) -> dict[str, Baseline]:
        """Returns the metrics of means of items and users, and of a random ranking."""
        from fedpersonal.evaluation.baselines import CHANCE
        from fedpersonal.suite.tasks.ratings.baselines import (
            predict_baselines,
            rank_by_chance,
            score_baseline,
        )

        data = experiment.data
        predictions = predict_baselines(data, part).items()
        means = {name: score_baseline(part.query, values) for name, values in predictions}
        return {**means, CHANCE: rank_by_chance(data)} if part is data.test else means

    def recommend(
        self, experiment: RatingExperiment, trained: TrainedModel, results: ClientResults
    ) -> Recommendations:
        """Scores the items for a few test users, whose query sets are held out."""
        from fedpersonal.suite.tasks.items import recommend

        return recommend(experiment, trained, results, held_out=experiment.data.test.query)

    def describe(self, experiment: RatingExperiment) -> dict[str, Any]:
        """Returns the evaluated users, and the constant and scale of predictions."""
        sizes = SimpleNamespace(**self.sizes(experiment.data))
        offset, scale = _offset_and_scale(sizes, experiment.options)
        return {
            "evaluate_on": experiment.options.evaluate_on,
            "rating_offset": offset,
            "rating_scale": scale,
        }


def _offset_and_scale(sizes: SimpleNamespace, options: RatingRun) -> tuple[float, float]:
    """Returns the constant and the scale of predictions, from the options or else the data."""
    offset, scale = options.rating_offset, options.rating_scale
    if offset is None:
        offset = sizes.mean_rating
    if scale is None:
        scale = 1.0 if sizes.rating_range <= _MAX_ERROR else sizes.rating_range / 4
    return offset, scale


def _is_near(source: Ratings, offset: float | None) -> bool:
    """Returns whether a constant, None for the mean, fits the ratings."""
    if offset is None:
        return True
    distance = abs(float(source.ratings.mean()) - offset)
    return distance <= _OFFSET_TOLERANCE * max(source.ratings.std(), 1e-6)


def _with_rated(
    model: PartitionedModel, dataset: ClientDataset, history: ClientDataset
) -> ClientDataset:
    if "rated" not in model.input_spec:
        return dataset
    return add_rated(dataset, history, places=model.input_spec["rated"].shape[1])


TASK = RatingTask()

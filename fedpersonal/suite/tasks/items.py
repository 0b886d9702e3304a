"""Shared parts of tasks with items: factorization, ranking and recommendations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.evaluation.client_metrics import find_metrics, lower_is_better, main_metric
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.methods.method import Layers
from fedpersonal.options import Options, option
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.readers.interactions import Interactions
from fedpersonal.suite.readers.movielens import item_titles
from fedpersonal.suite.readers.ranking import CUTOFF, candidates_as_clients
from fedpersonal.suite.readers.ratings import Ratings
from fedpersonal.suite.tasks.task import Data, EvaluationSet, OptionsT, SourceT, Task

if TYPE_CHECKING:
    from fedpersonal.model.metrics import Loss, Metric
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.report.samples import Recommendations
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

# Recommendations show this many clients, recommended items, and items of the client.
NUM_CLIENTS, NUM_RECOMMENDED, NUM_CHOSEN = 6, 10, 5
_MAX_SCORES = 1_000_000  # Scores in memory at once, unless one client has more.


def recommend(
    experiment: Experiment,
    trained: TrainedModel,
    results: ClientResults,
    *,
    held_out: ClientDataset,
) -> Recommendations:
    """Scores all items for a few test clients, each by its personalised model.

    The clients are those that improve most, worsen most, and are at the median of the change by
    personalisation. If nothing changes, or the model before was not evaluated, they are sampled by
    the run's seed. Items that a client has chosen are not recommended, unless they were held out.

    Args:
        experiment: An experiment whose data are an `ItemData`.
        trained: The trained model.
        results: Results of the test clients.
        held_out: Items that the test clients have chosen and their models have not seen, with the
            feature "item".
    """
    from fedpersonal.report.samples import ClientItems, Item, Recommendations

    data: ItemData = experiment.data
    source, everything = data.source, data.source.to_client_dataset()
    metric, chosen, groups = _choose(experiment, results)
    columns = results.per_client()
    names = item_names(experiment)
    has_ratings = not isinstance(source, Interactions)
    places = {name: place for place, name in enumerate(everything.client_ids.tolist())}
    clients = []
    for place, group, scores in zip(chosen, groups, _score_items(experiment, trained, chosen)):
        client = results.client_ids[place]
        features, labels = everything.client(places[client])
        ratings = dict(zip(features["item"].tolist(), labels.tolist() if has_ratings else []))
        hidden = held_out.client(int(place))[0]["item"]
        has = features["item"][~np.isin(features["item"], hidden)]
        scores[has] = -np.inf
        top = np.argsort(-scores, kind="stable")[:NUM_RECOMMENDED]
        has = has[::-1]  # The most recent items first.
        if has_ratings:
            has = has[np.argsort([-ratings[item] for item in has.tolist()], kind="stable")]
        before, after = (
            float(columns[f"{metric}_{stage}"][place]) if metric else None
            for stage in ("before", "after")
        )
        clients.append(
            ClientItems(
                client=client,
                group=group,
                before=before,
                after=after,
                has=[Item(names[i], rating=ratings.get(i)) for i in has[:NUM_CHOSEN].tolist()],
                top=[
                    Item(names[i], float(scores[i]), i in hidden, ratings.get(i))
                    for i in top[np.isfinite(scores[top])].tolist()
                ],
            )
        )
    return Recommendations(metric, clients)


def item_names(experiment: Experiment) -> list[str]:
    """Returns the items' titles, or their names in the data if they have no titles."""
    sources = experiment.task.sources
    assert sources  # Tasks with items have sources.
    titles = item_titles(*experiment.options.find(sources))
    return [titles.get(name, name) for name in experiment.data.source.item_ids.tolist()]


def _choose(
    experiment: Experiment, results: ClientResults
) -> tuple[str | None, np.ndarray, list[str]]:
    """Returns the metric by which clients are chosen, their places, and why each is shown."""
    columns = results.per_client()
    paired = [name[: -len("_before")] for name in columns if name.endswith("_before")]
    usual = find_metrics(experiment.task.metrics, paired)
    metric = next(iter(usual), main_metric(paired))
    candidates = np.flatnonzero(results.num_examples > 0)
    if metric is not None:
        gains = columns[f"{metric}_after"] - columns[f"{metric}_before"]
        gains = np.asarray(-gains if lower_is_better(metric) else gains, np.float64)
        ranked = candidates[np.isfinite(gains[candidates])]
        if gains[ranked].any():
            ranked = ranked[np.argsort(-gains[ranked], kind="stable")]
            groups = {}
            middle = len(ranked) // 2
            for place in ranked[:2]:
                groups[place] = "most improved" if gains[place] > 0 else "worsened least"
            for place in ranked[max(middle - 1, 0) : middle + 1]:
                groups.setdefault(place, "around the median")
            for place in ranked[-2:]:
                groups.setdefault(place, "worsened most" if gains[place] < 0 else "least improved")
            return metric, np.array([*groups], np.int64), [*groups.values()]
    rng = generator(Purpose.RECOMMENDED_CLIENTS, experiment.options.seed)
    size = min(NUM_CLIENTS, len(candidates))
    chosen = np.sort(rng.choice(candidates, size, replace=False))
    return None, chosen, ["sampled at random"] * len(chosen)


def _score_items(experiment: Experiment, trained: TrainedModel, chosen: np.ndarray) -> np.ndarray:
    """Returns test clients' scores of all items, float64 (len(chosen), num_items)."""
    test, num_items = experiment.data.test, experiment.data.num_items
    scores = [np.empty((0, num_items))]
    chunk = max(1, _MAX_SCORES // num_items)
    # The shards of the test, if they fit: another size needs a new trace, which takes longer.
    shard = min(test.query.num_clients, experiment.evaluator.clients_per_shard or chunk)
    room = shard if shard <= chunk else 0
    for clients in (chosen[i : i + chunk] for i in range(0, len(chosen), chunk)):
        items = np.tile(np.arange(num_items, dtype=np.int32), (len(clients), 1))
        query = candidates_as_clients(test.query.subset(clients), items)
        part = EvaluationSet(test.support.subset(clients), query, seen=test.seen)
        results = experiment.evaluation(part, with_before=False, room=room)(trained)
        assert results.predictions is not None  # Stacked packing always returns predictions.
        scores.append(results.predictions.astype(np.float64))
    return np.concatenate(scores)


PER_CLIENT_ITEMS = "own_item_embedding"
_USER = ("user_embedding", "user_bias")
LAYERS = Layers(embedding=_USER, head=_USER, table=_USER)


@dataclasses.dataclass(frozen=True, eq=False)
class ItemData(Data):
    """Users and items, split for one experiment.

    Attributes:
        source: The data before the split.
    """

    source: Ratings

    @property
    def num_users(self) -> int:
        """The number of rows of a table of user embeddings."""
        return len(self.source.user_ids)

    @property
    def num_items(self) -> int:
        """The number of rows of the item table."""
        return len(self.source.item_ids)


ItemDataT = TypeVar("ItemDataT", bound=ItemData)


class ItemTask(Task[OptionsT, SourceT, ItemDataT]):
    """A task whose clients are users who choose or rate items."""

    layers = LAYERS
    evaluation_packing = "stacked"

    def title(self, data: Mapping[str, Any]) -> str:
        """Returns the prediction problem in words; the items of MovieLens are films."""
        title = super().title(data)
        is_of_films = str(data.get("dataset")).startswith("movielens")
        return title.replace("items", "films") if is_of_films else title

    def sizes(self, data: ItemDataT) -> dict[str, Any]:
        """Returns the numbers of users and items."""
        return {"num_users": data.num_users, "num_items": data.num_items}

    def row_labels(self, experiment: Experiment[OptionsT, ItemDataT]) -> dict[str, Sequence[str]]:
        """Returns labels, with items only if they are public, as other users may read the file."""
        is_public = self.is_public(experiment.options.values())
        items = {"item": item_names(experiment)} if is_public else {}
        return {**super().row_labels(experiment), **items}


class FactorizationOptions(Options):
    """The embeddings of a matrix factorization."""

    embedding_dim: int = option(50, "Size of an embedding, K.", at_least=1, at_most=10_000)
    embedding_stddev: float = option(0.1, "Standard deviation of initial embeddings.", at_least=0)
    use_biases: bool = option(False, "Add a local user bias and a global item bias.")
    l2: float = option(0.0, "L2 penalty of the embeddings of a batch.", at_least=0)


def factorization(
    sizes: SimpleNamespace,
    options: FactorizationOptions,
    local_layers: Sequence[str],
    *,
    loss: Loss | None,
    metrics: Sequence[Metric],
    mean_rating: float = 0.0,
    scale: float = 1.0,
    rated_places: int = 0,
    hidden_units: Sequence[int] = (),
    item_difference: float = 0.0,
    item_sparsity: float = 0.0,
) -> PartitionedModel:
    """Returns one user's model if there are local layers, else a model with a table of all users.

    Args:
        sizes: `num_users` and `num_items`.
        options: The options.
        local_layers: The method's local layers; biases are ignored if the model has none.
        loss: As in `PartitionedModel`.
        metrics: As in `PartitionedModel`.
        mean_rating: As in `matrix_factorization`.
        scale: As in `matrix_factorization`.
        rated_places: As in `matrix_factorization`.
        hidden_units: As in `matrix_factorization`.
        item_difference: As in `matrix_factorization`.
        item_sparsity: As in `matrix_factorization`.
    """
    import tensorflow as tf

    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.suite.models.factorization import matrix_factorization

    tables = {"item_embedding": "item", "item_bias": "item"}
    if not local_layers:
        tables.update(user_embedding="user", user_bias="user")
    kinds = ("embedding", "bias") if options.use_biases else ("embedding",)
    tables = {name: feature for name, feature in tables.items() if name.endswith(kinds)}
    if PER_CLIENT_ITEMS in local_layers:
        tables[PER_CLIENT_ITEMS] = "item"
    if rated_places:
        tables["rated_embedding"] = "rated"
    return PartitionedModel(
        matrix_factorization(
            num_items=sizes.num_items,
            num_users=None if local_layers else sizes.num_users,
            embedding_dim=options.embedding_dim,
            use_biases=options.use_biases,
            rated_places=rated_places,
            hidden_units=hidden_units,
            per_client_items=PER_CLIENT_ITEMS if PER_CLIENT_ITEMS in local_layers else None,
            item_difference=item_difference,
            item_sparsity=item_sparsity,
            mean_rating=mean_rating,
            scale=scale,
            embedding_initializer=tf.keras.initializers.RandomNormal(
                stddev=options.embedding_stddev
            ),
            l2=options.l2,
        ),
        local_layers=[
            name for name in local_layers if options.use_biases or not name.endswith("_bias")
        ],
        loss=loss,
        metrics=metrics,
        lookups=tables,
        per_client_tables=[name for name, feature in tables.items() if feature == "user"],
    )


def query_metrics(scores: np.ndarray, counts: np.ndarray, suffix: str) -> dict[str, np.ndarray]:
    """Ranks the first example of each client's query set among the others.

    Args:
        scores: Floats (num_clients, longest query set), padded.
        counts: Examples of each client's query set, (num_clients,).
        suffix: The suffix of metrics' names, from `candidates_suffix`.

    Returns:
        `hr@10` and `ndcg@10`, float64 (num_clients,), NaN for clients without a ranking.
    """
    from fedpersonal.model.metrics import ranking_metrics

    candidates = np.arange(scores.shape[1]) < np.asarray(counts)[:, np.newaxis]
    metrics = ranking_metrics(scores, at=CUTOFF, candidates=candidates)
    return {f"{name}{suffix}": values for name, values in metrics.items()}


def rank_by_items(
    query: ClientDataset, item_scores: np.ndarray, suffix: str
) -> dict[str, np.ndarray]:
    """Returns `query_metrics` of the same item scores for all clients; ties count as random order.

    Args:
        query: The query sets, with the feature "item".
        item_scores: Floats (num_items,).
        suffix: As in `query_metrics`.
    """
    scores = np.zeros((query.num_clients, query.counts.max(initial=1)))
    scores[query.example_clients, query.example_positions] = item_scores[query.features["item"]]
    return query_metrics(scores, query.counts, suffix)


def ranked_means(columns: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns each column's mean over clients with a ranking; columns without any are left out."""
    means = {name: values[~np.isnan(values)] for name, values in columns.items()}
    return {name: float(values.mean()) for name, values in means.items() if values.size}

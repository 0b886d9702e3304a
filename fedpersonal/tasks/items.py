"""What tasks with items share: factorization, ranking, and what models recommend to clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.interactions import Interactions
from fedpersonal.data.movielens import item_titles
from fedpersonal.data.ranking import AT, as_clients
from fedpersonal.data.ratings import Ratings
from fedpersonal.draws import Purpose, generator
from fedpersonal.evaluation.client_metrics import find_metrics, lower_is_better, main_metric
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.methods.method import Layers
from fedpersonal.options import Options, option
from fedpersonal.tasks.task import Data, EvaluationSet, OptionsT, SourceT, Task

if TYPE_CHECKING:
    from fedpersonal.model.metrics import Loss, Metric
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.report.samples import Recommendations
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

CLIENTS, TOP, HAD = 6, 10, 5
_TOGETHER = 1_000_000  # Scores that are in memory at once, or those of one client.


def recommend(
    experiment: Experiment,
    trained: TrainedModel,
    results: ClientResults,
    *,
    held_out: ClientDataset,
) -> Recommendations:
    """Scores all items for some test clients, each by its personalised model.

    The clients are those whom personalisation helps most, hurts most, and who are between them;
    where it changes nothing, or that was not evaluated, they are drawn by the run's seed. What a
    client has chosen is not recommended, unless it was held out.

    Args:
        experiment: Of items, whose data are an `ItemData`.
        trained: The trained model.
        results: Of the test clients.
        held_out: What the test clients have chosen, and their models were not told, with the
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
        known = held_out.client(int(place))[0]["item"]
        has = features["item"][~np.isin(features["item"], known)]
        scores[has] = -np.inf
        top = np.argsort(-scores, kind="stable")[:TOP]
        has = has[::-1]  # The last ones first.
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
                has=[Item(names[i], rating=ratings.get(i)) for i in has[:HAD].tolist()],
                top=[
                    Item(names[i], float(scores[i]), i in known, ratings.get(i))
                    for i in top[np.isfinite(scores[top])].tolist()
                ],
            )
        )
    return Recommendations(metric, clients)


def item_names(experiment: Experiment) -> list[str]:
    """Returns the items' titles; an item without one goes by its name in the data."""
    sources = experiment.task.sources
    assert sources  # Items have names.
    titles = item_titles(*experiment.options.find(sources))
    return [titles.get(name, name) for name in experiment.data.source.item_ids.tolist()]


def _choose(
    experiment: Experiment, results: ClientResults
) -> tuple[str | None, np.ndarray, list[str]]:
    """Returns by what metric clients are chosen, their places, and why each is shown."""
    columns = results.per_client()
    paired = [name[: -len("_before")] for name in columns if name.endswith("_before")]
    usual = find_metrics(experiment.task.metrics, paired)
    metric = next(iter(usual), main_metric(paired))
    known = np.flatnonzero(results.num_examples > 0)
    if metric is not None:
        gains = columns[f"{metric}_after"] - columns[f"{metric}_before"]
        gains = np.asarray(-gains if lower_is_better(metric) else gains, np.float64)
        ranked = known[np.isfinite(gains[known])]
        if gains[ranked].any():
            ranked = ranked[np.argsort(-gains[ranked], kind="stable")]
            groups = {}
            middle = len(ranked) // 2
            for place in ranked[:2]:
                groups[place] = "most helped" if gains[place] > 0 else "least hurt"
            for place in ranked[max(middle - 1, 0) : middle + 1]:
                groups.setdefault(place, "around the median")
            for place in ranked[-2:]:
                groups.setdefault(place, "most hurt" if gains[place] < 0 else "least helped")
            return metric, np.array([*groups], np.int64), [*groups.values()]
    rng = generator(Purpose.RECOMMENDED_CLIENTS, experiment.options.seed)
    chosen = np.sort(rng.choice(known, min(CLIENTS, len(known)), replace=False))
    return None, chosen, ["drawn at random"] * len(chosen)


def _score_items(experiment: Experiment, trained: TrainedModel, chosen: np.ndarray) -> np.ndarray:
    """Returns test clients' scores of all items, float64 (len(chosen), num_items)."""
    test, num_items = experiment.data.test, experiment.data.num_items
    found = [np.empty((0, num_items))]
    together = max(1, _TOGETHER // num_items)
    # As many as were tested: another size would be traced anew, which takes longer.
    tested = min(test.query.num_clients, experiment.evaluator.together or together)
    room = tested if tested <= together else 0
    for some in (chosen[i : i + together] for i in range(0, len(chosen), together)):
        items = np.tile(np.arange(num_items, dtype=np.int32), (len(some), 1))
        query = as_clients(test.query.subset(some), items)
        part = EvaluationSet(test.support.subset(some), query, seen=test.seen)
        scores = experiment.evaluation(part, with_before=False, room=room)(trained).predictions
        assert scores is not None  # Stacked packing gives them unasked.
        found.append(scores.astype(np.float64))
    return np.concatenate(found)


OWN_ITEMS = "own_item_embedding"
_USER = ("user_embedding", "user_bias")
LAYERS = Layers(embedding=_USER, head=_USER, table=_USER)


@dataclasses.dataclass(frozen=True, eq=False)
class ItemData(Data):
    """Users and items, split for one experiment.

    Attributes:
        source: All that was split.
    """

    source: Ratings

    @property
    def num_users(self) -> int:
        """Rows of a table of user embeddings."""
        return len(self.source.user_ids)

    @property
    def num_items(self) -> int:
        """Rows of the item table."""
        return len(self.source.item_ids)


ItemDataT = TypeVar("ItemDataT", bound=ItemData)


class ItemTask(Task[OptionsT, SourceT, ItemDataT]):
    """A task whose clients are users who choose or rate items."""

    layers = LAYERS
    evaluation_packing = "stacked"

    def title(self, data: Mapping[str, Any]) -> str:
        """Returns what is predicted; the items of MovieLens are films."""
        title = super().title(data)
        is_of_films = str(data.get("dataset")).startswith("movielens")
        return title.replace("items", "films") if is_of_films else title

    def sizes(self, data: ItemDataT) -> dict[str, Any]:
        """Returns the numbers of users and items."""
        return {"num_users": data.num_users, "num_items": data.num_items}

    def names(self, experiment: Experiment[OptionsT, ItemDataT]) -> dict[str, Sequence[str]]:
        """Names the items, too, where they are nobody's secret: other users may read the file."""
        is_public = self.is_public(experiment.options.values())
        items = {"item": item_names(experiment)} if is_public else {}
        return {**super().names(experiment), **items}


class FactorizationOptions(Options):
    """What the embeddings are like."""

    embedding_dim: int = option(50, "Size of an embedding, K.", at_least=1, at_most=10_000)
    embedding_stddev: float = option(0.1, "Deviation of initial embeddings.", at_least=0)
    use_biases: bool = option(False, "Add a local user bias and a global item bias.")
    l2: float = option(0.0, "Penalty of the embeddings in use.", at_least=0)


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
    """Returns one user's model where layers are local, else one with a table of all users.

    Args:
        sizes: `num_users` and `num_items`.
        options: The options.
        local_layers: What the method wants to be local; biases count where there are any.
        loss: As of `PartitionedModel`.
        metrics: Alike.
        mean_rating: As of `matrix_factorization`.
        scale: Alike.
        rated_places: Alike.
        hidden_units: Alike.
        item_difference: Alike.
        item_sparsity: Alike.
    """
    import tensorflow as tf

    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.models.factorization import matrix_factorization

    tables = {"item_embedding": "item", "item_bias": "item"}
    if not local_layers:
        tables.update(user_embedding="user", user_bias="user")
    kinds = ("embedding", "bias") if options.use_biases else ("embedding",)
    tables = {name: feature for name, feature in tables.items() if name.endswith(kinds)}
    if OWN_ITEMS in local_layers:
        tables[OWN_ITEMS] = "item"
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
            own_items=OWN_ITEMS if OWN_ITEMS in local_layers else None,
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
        owned_tables=[name for name, feature in tables.items() if feature == "user"],
    )


def query_metrics(scores: np.ndarray, counts: np.ndarray, suffix: str) -> dict[str, np.ndarray]:
    """Ranks the first example of each client's query set among the others.

    Args:
        scores: Floats (num_clients, longest query set), padded.
        counts: Examples of each client's query set, (num_clients,).
        suffix: What names end with, as of `candidates_suffix`.

    Returns:
        `hr@10` and `ndcg@10`, float64 (num_clients,), NaN for clients who are not ranked.
    """
    from fedpersonal.model.metrics import ranking_metrics

    candidates = np.arange(scores.shape[1]) < np.asarray(counts)[:, np.newaxis]
    found = ranking_metrics(scores, at=AT, candidates=candidates)
    return {f"{name}{suffix}": values for name, values in found.items()}


def rank_by_items(
    query: ClientDataset, item_scores: np.ndarray, suffix: str
) -> dict[str, np.ndarray]:
    """Ranks by the same scores for all clients; equal ones are a random order.

    Args:
        query: The query sets, with the feature "item".
        item_scores: Floats (num_items,).
        suffix: As of `query_metrics`, whose metrics are returned.
    """
    scores = np.zeros((query.num_clients, query.counts.max(initial=1)))
    scores[query.example_clients, query.example_positions] = item_scores[query.features["item"]]
    return query_metrics(scores, query.counts, suffix)


def ranked_means(columns: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the mean of each column over the clients who are ranked; nothing if nobody is."""
    means = {name: values[~np.isnan(values)] for name, values in columns.items()}
    return {name: float(values.mean()) for name, values in means.items() if values.size}

"""What personalised models recommend to some test clients, of tasks that have items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.ratings.interactions import Interactions
from fedpersonal.data.ratings.ranking import as_clients
from fedpersonal.draws import Purpose, generator
from fedpersonal.evaluation.client_results import ClientResults
from fedpersonal.evaluation.direction import find_metric, lower_is_better, main_metric
from fedpersonal.report.samples import ClientItems, Item, Recommendations
from fedpersonal.tasks.task import EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.tasks.factorization import ItemData
    from fedpersonal.trained import TrainedModel

CLIENTS, TOP, HAD = 6, 10, 5
_TOGETHER = 1_000_000  # Scores that are in memory at once, or those of one client.


def recommend(
    experiment: Experiment,
    trained: TrainedModel,
    results: ClientResults,
    *,
    held_out: ClientDataset,
    titles: Mapping[str, str],
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
        titles: Items' titles by their names; an item without one goes by its name.
    """
    data: ItemData = experiment.data
    source, everything = data.source, data.source.to_client_dataset()
    metric, chosen, groups = _choose(experiment, results)
    columns = results.per_client()
    names = [titles.get(name, name) for name in source.item_ids.tolist()]
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


def _choose(
    experiment: Experiment, results: ClientResults
) -> tuple[str | None, np.ndarray, list[str]]:
    """Returns by what metric clients are chosen, their places, and why each is shown."""
    columns = results.per_client()
    paired = [name[: -len("_before")] for name in columns if name.endswith("_before")]
    usual = filter(None, (find_metric(name, paired) for name in experiment.task.metrics))
    metric = next(usual, main_metric(paired))
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
    for some in (chosen[i : i + together] for i in range(0, len(chosen), together)):
        items = np.tile(np.arange(num_items, dtype=np.int32), (len(some), 1))
        query = as_clients(test.query.subset(some), items)
        part = EvaluationSet(test.support.subset(some), query, seen=test.seen)
        scores = experiment.evaluation(part, with_before=False)(trained).predictions
        assert scores is not None  # Stacked packing gives them unasked.
        found.append(scores.astype(np.float64))
    return np.concatenate(found)

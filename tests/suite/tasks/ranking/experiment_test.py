"""Experiments on interactions: what they learn, what is ranked, and that nothing leaks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedpersonal.suite.readers.generated.ratings import generate_ratings
from fedpersonal.suite.readers.interactions import Interactions
from fedpersonal.suite.tasks.experiment import build_experiment
from fedpersonal.suite.tasks.ranking.data import rank_by_popularity
from fedpersonal.suite.tasks.ranking.task import TASK
from fedpersonal.training.loaded import load_run
from fedpersonal.training.tested import summarize

NUM_USERS, NUM_ITEMS = 60, 150


@pytest.fixture(name="source", scope="module")
def _source():
    """Interactions of which a user's next one is as good as random to the user alone."""
    ratings = generate_ratings(
        num_users=NUM_USERS, num_items=NUM_ITEMS, seed=4, min_ratings=8, max_ratings=25
    )
    return Interactions(**vars(ratings))


def build(source, **options):
    options = TASK.options(**{"embedding_dim": 8, **options})
    return build_experiment(TASK, source, options)


def ranked(experiment, trained):
    report = TASK.test(experiment, trained)
    return {**report.results.overall(), **report.metrics}


@pytest.fixture(name="alone", scope="module")
def _alone(source):
    """Trains each client by itself, every other item a negative, and ranks what is held out."""
    return [rank_alone(source, leaky) for leaky in (False, True)]


def rank_alone(source, leaky):
    local = {"standalone_epochs": 30, "finetuning_learning_rate": 20.0, "support_negatives": 0}
    options = {"client_batch_size": 50, "leaky_negatives": leaky, **local}
    experiment = build(source, method="local_only", **options)
    return ranked(experiment, experiment.trainer.untrained())


@pytest.mark.exhaustive
def test_a_client_by_itself_profits_from_negatives_only_where_they_leak(alone):
    """By itself it has nothing to tell a held-out item from the other items by."""
    fair, leaking = alone
    assert fair["hr@10"] < 0.2 and fair["hr@10_all"] < 0.15
    assert leaking["hr@10"] > 0.9 and leaking["hr@10_all"] > 0.9


@pytest.mark.exhaustive(but=("furl",))
@pytest.mark.parametrize("method", ["furl", "centralized"])
def test_every_round_draws_negatives_anew(source, method):
    experiment = build(source, method=method, clients_per_round=NUM_USERS)
    items = []  # Of all clients, in whatever order.
    for number in (1, 1, 2):
        packed = [shard.examples for shard in experiment.trainer.cohort(number).shards]
        drawn = [p["features"]["item"][p["mask"] > 0] for p in packed]
        labels = np.concatenate([p["labels"][p["mask"] > 0] for p in packed])
        items.append(np.sort(np.concatenate(drawn)))
        assert labels.mean() == pytest.approx(0.2)
    np.testing.assert_array_equal(items[0], items[1])
    assert (items[0] != items[2]).any()


@pytest.mark.exhaustive(but=("pfedrec",))
@pytest.mark.parametrize("method", ["pfedrec", "fed_recon", "fed_avg_finetuning"])
def test_metrics_are_those_of_the_scores(tiny, method):
    """Against a loop over what the model that is kept in the folder predicts."""
    finished = tiny.run(TASK, method=method)
    data, (first, *_) = finished.data, finished.clients
    seen = set(data.train.positives.client(0)[0]["item"].tolist())
    held_out, *others = data.test.query.client(0)[0]["item"].tolist()
    everything = np.arange(data.num_items)
    with load_run(finished.path).trained as trained:
        experiment = finished.experiment
        one = dataclasses.replace(
            data.test,
            support=data.test.support.subset([0]),
            query=dataclasses.replace(
                data.test.query.subset([0]),
                offsets=np.array([0, len(everything)]),
                features={"item": everything, "user": np.zeros_like(everything)},
                labels=np.zeros(len(everything)),
            ),
        )
        (scores,) = experiment.evaluation(one)(trained).predictions
    fewer = "_of_14_to_18"
    for suffix, candidates in ((fewer, others), ("_all", set(everything) - seen - {held_out})):
        rank = sum(scores[item] > scores[held_out] for item in candidates)
        assert float(first[f"hr@10{suffix}"]) == (rank < 10)
        expected = 1 / np.log2(rank + 2) if rank < 10 else 0
        assert float(first[f"ndcg@10{suffix}"]) == pytest.approx(expected, abs=1e-6)
    for metric in TASK.metrics:
        name = metric if metric.endswith("_all") else metric + fewer
        values = [float(row[name]) for row in finished.clients]
        assert finished.test[name] == pytest.approx(np.mean(values), abs=1e-6)
    assert all(row[f"eval/hr@10{fewer}"] for row in finished.rounds if row["eval/loss"])
    sent = {name for name in finished.crossing if name.startswith("user")}
    assert bool(sent) == (method == "fed_avg_finetuning")  # A table of the server's.


@pytest.mark.exhaustive
def test_a_model_that_scores_all_alike_has_the_metrics_of_chance(source):
    """Also beside a user who has chosen everything, and is not ranked."""
    everything = {
        "users": np.full(NUM_ITEMS, NUM_USERS, np.int32),
        "items": np.arange(NUM_ITEMS, dtype=np.int32),
        "ratings": np.ones(NUM_ITEMS, np.float32),
        "times": np.arange(NUM_ITEMS),
        "user_ids": np.array(["anna"], object),
    }
    joined = {name: np.append(getattr(source, name), value) for name, value in everything.items()}
    source = dataclasses.replace(source, **joined)
    experiment = build(source, embedding_stddev=0.0, method="furl")
    report = TASK.test(experiment, experiment.trainer.untrained())
    test = summarize(report)
    assert (test["num_clients"], test["num_clients_without_query"]) == (NUM_USERS, 1)
    assert test["num_clients_of"] == {}
    found = {name: test[name] for name in TASK.metrics}
    chance = TASK.baselines(experiment, experiment.data.test)["chance"]
    assert chance.metrics == pytest.approx(found)
    assert found["hr@10"] == pytest.approx(10 / 100)
    discounts = np.sum(1 / np.log2(np.arange(10) + 2))
    assert found["ndcg@10"] == pytest.approx(discounts / 100)
    left = NUM_ITEMS - experiment.data.train.positives.counts[:-1]
    assert np.isnan(report.columns["hr@10"][-1])
    assert found["hr@10_all"] == pytest.approx(np.mean(10 / left))
    assert found["ndcg@10_all"] == pytest.approx(np.mean(discounts / left))


def test_popularity_counts_who_has_chosen_an_item_in_training(source):
    data = TASK.split(source, TASK.options())
    found = rank_by_popularity(data, data.test)
    counts = np.zeros(NUM_ITEMS)
    np.add.at(counts, data.train.positives.features["item"], 1)
    for client in range(NUM_USERS):
        held_out, *others = data.test.query.client(client)[0]["item"]
        seen = set(data.train.positives.client(client)[0]["item"].tolist())
        unseen = [item for item in range(NUM_ITEMS) if item not in seen and item != held_out]
        for suffix, candidates in (("", others), ("_all", unseen)):
            before = sum(counts[candidates] > counts[held_out])
            tied = sum(counts[candidates] == counts[held_out])
            chance = np.mean([before + i < 10 for i in range(tied + 1)])
            assert found[f"hr@10{suffix}"][client] == pytest.approx(chance)
    assert found["hr@10"].mean() > 0.12


@pytest.mark.exhaustive
def test_rounds_learn_what_a_client_alone_cannot(source, alone):
    options = {"total_rounds": 60, "clients_per_round": 60, "client_batch_size": 50}
    experiment = build(
        source,
        method="furl",
        server_optimizer="adam",
        server_learning_rate=0.03,
        local_learning_rate=0.3,
        **options,
    )
    with experiment.trainer.fit(rounds=60, progress=False) as trained:
        found = ranked(experiment, trained)
    assert found["hr@10"] > 0.2 > alone[0]["hr@10"]


def test_what_is_printed_says_when_figures_leak(tiny):
    finished = tiny.run(TASK, method="pfedrec")
    (line,) = TASK.report(finished.summary)
    assert line.startswith("test, 20 users, 320 items: hr@10_of_14_to_18 0.")
    assert finished.test["guesses"].keys() == {"popularity", "chance", "none is chosen"}
    assert "chance: 0.6299" in line
    leaking = {**finished.summary, "leaky_negatives": True}
    assert "these metrics leak" in TASK.report(leaking)[-1]

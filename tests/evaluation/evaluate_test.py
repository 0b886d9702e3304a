"""Evaluation of clients against a recomputation by hand, and the statistics over clients."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.data.splits import split_support_query
from fedpersonal.evaluation import computation
from fedpersonal.evaluation.computation import pack_evaluation
from fedpersonal.evaluation.evaluate import build_evaluation, evaluate_clients
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.methods.algorithm import GradientPhase, RidgePhase
from fedpersonal.model.metrics import (
    HALF_STAR_ACCURACY,
    MAE,
    RATING_METRICS,
    RMSE,
    binary_accuracy,
    class_accuracy,
    finalize,
    ranking_metrics,
)
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.factorization import matrix_factorization

MEAN = 3.0
L2 = 0.05
RATE = 0.1
USER_START = np.array([0.3, -0.2])
NUM_ITEMS = 6
BATCH_SIZE = 3
# Support sets of very different sizes; the second client has no query set.
COUNTS = (4, 3, 17, 1, 9)


def build_model(**options):
    return PartitionedModel(
        matrix_factorization(
            num_items=NUM_ITEMS,
            embedding_dim=2,
            mean_rating=MEAN,
            l2=L2,
            user_initializer=tf.keras.initializers.Constant(USER_START.tolist()),
        ),
        local_layers=["user_embedding"],
        metrics=RATING_METRICS,
        **options,
    )


@pytest.fixture(name="ratings", scope="module")
def _ratings(draw_ratings):
    return draw_ratings(COUNTS, num_items=NUM_ITEMS, seed=9)


@pytest.fixture(name="split", scope="module")
def _split(ratings):
    return split_support_query(ratings, batch_size=BATCH_SIZE)


@pytest.fixture(name="weights", scope="module")
def _weights():
    items = np.random.default_rng(0).normal(size=(NUM_ITEMS, 2)).astype(np.float32)
    return {"item_embedding/embeddings": items, "ignored": np.zeros(3, np.float32)}


PHASE = GradientPhase(
    variables="local",
    data="support",
    optimizer=tff.learning.optimizers.build_sgdm(RATE),
    epochs=2,
    max_steps=3,
)


def reconstructed(items, features, labels):
    """Gradient steps on the user's vector alone, written out."""
    user = USER_START.copy()
    batches = [slice(i, i + BATCH_SIZE) for i in range(0, len(labels), BATCH_SIZE)]
    for batch in (2 * batches)[:3]:
        rows = items[features["item"][batch]]
        errors = rows @ user + MEAN - labels[batch]
        user = user - RATE * (2 * rows.T @ errors / len(errors) + 2 * L2 * user)
    return user


def sums(items, user, features, labels):
    rows = items[features["item"]].astype(np.float64)
    errors = rows @ user + MEAN - labels
    norms = (rows**2).sum(1) + (user**2).sum()
    return {
        "loss": (errors**2 + L2 * norms).sum(),
        "rmse": (errors**2).sum(),
        "mae": np.abs(errors).sum(),
        "accuracy": (np.abs(errors) <= 0.5).sum(),
    }


@pytest.mark.parametrize("lookups", [{}, {"item_embedding": "item"}])
def test_reconstruction_evaluation_is_what_is_written_out(split, weights, lookups):
    support, query = split
    results = evaluate_clients(
        build_model(lookups=lookups),
        [PHASE],
        weights,
        support,
        query,
        batch_size=BATCH_SIZE,
        clients=2,  # So that the fifth client shares its member with padding.
    )
    np.testing.assert_array_equal(results.client_ids, support.client_ids)
    np.testing.assert_array_equal(results.num_examples, [1, 0, 8, 0, 3])
    items = weights["item_embedding/embeddings"]
    for client in range(5):
        rebuilt = reconstructed(items, *support.client(client))
        features, labels = query.client(client)
        for stage, user in ((results.before, USER_START), (results.after, rebuilt)):
            expected = sums(items, user, features, labels)
            assert sorted(stage) == sorted(expected)
            for name, value in expected.items():
                expected_pair = [value, len(labels)]
                np.testing.assert_allclose(stage[name][client], expected_pair, rtol=1e-4, atol=1e-5)
        predictions = results.predictions[client][: len(labels)]
        np.testing.assert_allclose(predictions, items[features["item"]] @ rebuilt + MEAN, rtol=1e-4)
    # The numbers tell clients, stages and metrics apart.
    losses = [results.after["loss"][:, 0], results.before["loss"][:, 0]]
    assert len(np.unique(losses)) == 2 * 3 + 1


def test_without_phases_variables_are_taken_as_they_are(split, weights):
    support, query = split
    results = evaluate_clients(
        build_model(), (), weights, support, query, batch_size=BATCH_SIZE, clients=5
    )
    items = weights["item_embedding/embeddings"]
    for name, values in results.after.items():
        np.testing.assert_array_equal(values, results.before[name])
        expected = [sums(items, USER_START, *query.client(i))[name] for i in range(5)]
        np.testing.assert_allclose(values[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_pooled_predictions_of_shards_as_wide_as_their_longest_query_set(split, weights):
    support, query = split
    stacked, pooled = (
        build_evaluation(
            build_model(), (), support, query, batch_size=BATCH_SIZE, clients=2, **options
        )(weights)
        for options in ({}, {"packing": "pooled", "with_predictions": True})
    )
    for count, own, other in zip(query.counts, pooled.predictions, stacked.predictions):
        np.testing.assert_allclose(own[:count], other[:count], rtol=1e-5)


@pytest.mark.parametrize(("packing", "shared"), [("pooled", 2), ("stacked", 3)])
def test_validation_and_test_share_what_is_traced(split, weights, monkeypatch, packing, shared):
    """Each traces when it is first called; stacked, where query sets are as wide."""
    traced, trace = [], computation.keras_computation
    monkeypatch.setattr(computation, "keras_computation", lambda *t: traced.append(t) or trace(*t))
    support, query = split
    options = {"batch_size": BATCH_SIZE, "clients": len(COUNTS), "packing": packing}
    model, other = build_model(), query.head(2)
    validate = build_evaluation(model, [PHASE], support, other, with_before=False, **options)
    test = build_evaluation(model, [PHASE], support, query, **options)
    assert not traced
    validate(weights)
    assert len(traced) == 1
    results = test(weights)
    assert len(traced) == shared
    test(weights)
    assert len(traced) == shared
    # Predictions before and after are two computations of the same clients.
    assert validate(weights).before is None
    plain = build_evaluation(model, (), support, query, with_before=False, **options)(weights)
    for name, pairs in plain.after.items():
        np.testing.assert_array_equal(results.before[name], pairs)
    assert (results.before["loss"] != results.after["loss"])[[0, 2, 4]].any(1).all()


def test_ridge_personalises_on_the_support_set_as_a_whole(split, weights):
    """The phase says `query`, as training might: evaluation hands it the support set, all of it."""
    support, query = split
    results = evaluate_clients(
        build_model(),
        [RidgePhase(data="query", l2=1.0)],
        weights,
        support,
        query,
        batch_size=BATCH_SIZE,
        clients=3,
    )
    items = weights["item_embedding/embeddings"]
    for client in (0, 2, 4):
        features, labels = support.client(client)
        rows = items[features["item"]]
        user = np.linalg.solve(rows.T @ rows + np.eye(2), rows.T @ (labels - MEAN))
        asked = query.client(client)[0]["item"]
        np.testing.assert_allclose(
            results.predictions[client][: len(asked)], items[asked] @ user + MEAN, rtol=1e-3
        )


@pytest.mark.parametrize("lookups", [{}, {"item_embedding": "item"}])
def test_finetuning_moves_global_variables_of_that_client_alone(split, weights, lookups):
    """A client's items move on its support set, and its query set sees them moved."""
    phase = dataclasses.replace(PHASE, variables=("item_embedding",), epochs=1, max_steps=1)
    results = evaluate_clients(
        build_model(lookups=lookups), [phase], weights, *split, batch_size=BATCH_SIZE, clients=2
    )
    support, query = split
    for client in (0, 2, 4):
        items = weights["item_embedding/embeddings"].copy()
        features, labels = (
            {k: v[:BATCH_SIZE] for k, v in support.client(client)[0].items()},
            support.client(client)[1][:BATCH_SIZE],
        )
        rows = items[features["item"]]
        slopes = 2 * (rows @ USER_START + MEAN - labels)[:, np.newaxis] * USER_START + 2 * L2 * rows
        np.subtract.at(items, features["item"], RATE * slopes / len(labels))
        asked = query.client(client)[0]["item"]
        np.testing.assert_allclose(
            results.predictions[client][: len(asked)], items[asked] @ USER_START + MEAN, rtol=1e-4
        )
    assert set(query.features["item"]) & set(support.features["item"])


def test_halves_split_by_batches(ratings):
    support, query = split_support_query(ratings, batch_size=BATCH_SIZE, split="aggregated")
    assert support.counts.tolist() == [3, 3, 9, 1, 6]
    assert query.counts.tolist() == [1, 0, 8, 0, 3]
    labels = ratings.client(2)[1]
    np.testing.assert_array_equal(support.client(2)[1], labels[:9])
    np.testing.assert_array_equal(query.client(2)[1], labels[9:])


def test_support_and_query_split_by_batches(ratings, split):
    support, query = split
    assert support.counts.tolist() == [3, 3, 9, 1, 6]
    assert query.counts.tolist() == [1, 0, 8, 0, 3]
    first, last = ratings.client(2)[1], ratings.client(4)[1]
    expected = np.concatenate([first[3:6], first[9:12], first[15:17]])
    np.testing.assert_array_equal(query.client(2)[1], expected)
    np.testing.assert_array_equal(support.client(4)[1], np.concatenate([last[:3], last[6:]]))


def test_every_client_is_packed_once(split):
    support, query = split
    members = pack_evaluation(build_model(), support, query, clients=2, batch_size=BATCH_SIZE)
    ids = np.concatenate([member["ids"] for member in members])
    assert sorted(ids.tolist()) == [-1, 0, 1, 2, 3, 4]
    for member in members:
        for place, client in enumerate(member["ids"]):
            counts = (support.counts[client], query.counts[client]) if client >= 0 else (0, 0)
            assert member["support"]["mask"][place].sum() == counts[0]
            assert member["query"]["mask"][place].sum() == counts[1]
        assert member["query"]["mask"].shape == (2, 1, 8)


def results_of(before, after, num_examples):
    """Client results of the loss and of the RMSE of given mean losses."""
    counts = np.asarray(num_examples, np.float64)
    stages = [
        {name: np.stack([np.array(m) * counts, counts], -1) for name in ("loss", "rmse")}
        for m in (before, after)
    ]
    return ClientResults(
        client_ids=np.array([f"c{i}" for i in range(len(counts))], object),
        num_examples=counts,
        before=stages[0],
        after=stages[1],
        predictions=np.zeros((len(counts), 1)),
        metrics=(RMSE,),
    )


def test_overall_is_the_mean_over_examples():
    results = results_of([9.0, 9.0], [1.0, 4.0], [3, 1])
    assert results.overall() == {"loss": 7 / 4, "rmse": (7 / 4) ** 0.5}


def test_columns_are_means_of_each_client():
    results = results_of([9.0, 1.0, 2.0], [1.0, 4.0, 5.0], [3, 1, 0])
    columns = results.per_client()
    assert list(columns) == [
        "client",
        "num_examples",
        "loss_before",
        "rmse_before",
        "loss_after",
        "rmse_after",
    ]
    assert columns["client"].tolist() == ["c0", "c1", "c2"]
    assert columns["num_examples"].tolist() == [3, 1, 0]
    np.testing.assert_allclose(columns["loss_before"], [9.0, 1.0, np.nan])
    np.testing.assert_allclose(columns["rmse_before"], [3.0, 1.0, np.nan])
    np.testing.assert_allclose(columns["rmse_after"], [1.0, 2.0, np.nan])


def test_percentiles_and_the_share_hurt_are_over_clients_with_examples():
    # Mean losses after: 0, 1, ..., 20, of clients of all sizes, and two clients without any.
    after = [*np.random.default_rng(0).permutation(np.arange(21.0)), 99.0, 99.0]
    before = [loss + (1 if loss < 15 else -1 if loss < 20 else 0) for loss in after]
    sizes = [*range(1, 22), 0, 0]
    distribution = results_of(before, after, sizes).distribution()
    assert distribution["percentiles"]["loss"] == pytest.approx(
        {"p5": 1.0, "p25": 5.0, "p50": 10.0, "p75": 15.0, "p95": 19.0}
    )
    assert distribution["percentiles"]["rmse"]["p25"] == pytest.approx(5.0**0.5)
    # 15 to 19 are worse off; 20 is as it was.
    assert distribution["share_hurt"] == pytest.approx(5 / 21)
    # A loss that is no number after personalisation hurts; who has none before does not count.
    lost = results_of([1.0, 1.0, 1.0, np.nan], [np.nan, np.inf, 0.5, np.nan], [1, 1, 1, 1])
    assert lost.distribution()["share_hurt"] == pytest.approx(2 / 3)


def test_nobody_to_evaluate_is_no_error():
    """And no divergence either, which a loss of NaN is."""
    nobody = results_of([1.0], [1.0], [0])
    assert nobody.distribution() == {"percentiles": {}, "share_hurt": None}
    assert nobody.overall() == nobody.overall_before() == {}
    diverged = results_of([1.0, 1.0], [np.nan, 1.0], [1, 0])
    assert math.isnan(diverged.overall()["loss"]) and diverged.overall_before()["loss"] == 1.0


def test_metrics_are_sums_over_examples():
    labels, predictions = tf.constant([1.0, 2.0, 5.0]), tf.constant([1.5, 0.0, 5.6])
    np.testing.assert_allclose(RMSE.example_value(labels, predictions), [0.25, 4.0, 0.36], 1e-5)
    np.testing.assert_allclose(MAE.example_value(labels, predictions), [0.5, 2.0, 0.6], 1e-5)
    # Half a star away is still right.
    np.testing.assert_array_equal(HALF_STAR_ACCURACY.example_value(labels, predictions), [1, 0, 0])
    values = finalize(
        RATING_METRICS,
        {"rmse": np.array([8.0, 2]), "mae": np.array([6.0, 2]), "loss": np.array([9.0, 2])},
    )
    assert values == {"rmse": 2.0, "mae": 3.0, "loss": 4.5}


def test_accuracy_of_classes_by_hand():
    metric = class_accuracy("share")
    logits = tf.constant([[1.0, 3.0, 2.0], [-1.0, -3.0, -2.0], [0.0, 0.1, 0.2], [9.0, 8.0, 7.0]])
    right = metric.example_value(tf.constant([1, 2, 2, 1]), logits)
    assert (metric.name, right.dtype) == ("share", tf.float32)
    assert right.numpy().tolist() == [1, 0, 1, 0]
    assert finalize([metric], {"share": np.array([2.0, 4])}) == {"share": 0.5}


@pytest.mark.parametrize("dtype", [tf.int32, tf.float32])
def test_accuracy_of_two_classes_by_hand(dtype):
    metric = binary_accuracy()
    labels = tf.constant([1, 1, 0, 0, 0], dtype)
    right = metric.example_value(labels, tf.constant([0.1, -0.1, 0.1, -0.1, 0.0]))
    assert (metric.name, right.dtype) == ("accuracy", tf.float32)
    assert right.numpy().tolist() == [1, 0, 0, 1, 1]


def test_hit_rate_and_ndcg_by_hand():
    ranks = [0, 1, 2, 6, 9, 10]
    scores = np.array([np.append(0.5, np.arange(20) < rank) for rank in ranks])
    metrics = ranking_metrics(scores, at=10)
    assert list(metrics) == ["hr@10", "ndcg@10"]
    np.testing.assert_array_equal(metrics["hr@10"], [1, 1, 1, 1, 1, 0])
    expected = [1.0, 0.6309298, 0.5, 1 / 3, 1 / np.log2(11), 0.0]
    np.testing.assert_allclose(metrics["ndcg@10"], expected, rtol=1e-6)
    assert ranking_metrics(scores, at=1)["hr@1"].tolist() == [1, 0, 0, 0, 0, 0]


def test_ties_favour_nobody():
    """Equal scores are as good as a random order of their items."""
    constant = ranking_metrics(np.zeros((3, 100)), at=10)
    np.testing.assert_allclose(constant["hr@10"], 0.1)
    np.testing.assert_allclose(constant["ndcg@10"], np.sum(1 / np.log2(np.arange(2, 12))) / 100)
    random = np.random.default_rng(0)
    scores = random.integers(0, 4, (5, 30)).astype(float)
    orders = [ranking_metrics(scores + 1e-3 * random.random((5, 30)), at=10) for _ in range(4000)]
    for name, values in ranking_metrics(scores, at=10).items():
        found = np.mean([order[name] for order in orders], 0)
        np.testing.assert_allclose(values, found, atol=0.03, err_msg=name)


def test_a_random_order_of_any_number_of_candidates_is_never_a_sure_hit():
    """A constant scorer has the chance level; where that would be 1, nobody is measured."""
    counts = np.arange(15)
    candidates = np.arange(20) < counts[:, np.newaxis]
    found = ranking_metrics(np.zeros((15, 20)), at=10, candidates=candidates)
    assert np.isnan(found["hr@10"][:11]).all() and np.isnan(found["ndcg@10"][:11]).all()
    np.testing.assert_allclose(found["hr@10"][11:], 10 / counts[11:])
    random = np.random.default_rng(1)
    # What is no candidate does not count, whatever its score.
    for padding in (-np.inf, 0.0, 2.0, np.inf, np.nan):
        scores = np.where(candidates, random.random((4000, 15, 20)), padding)
        orders = [ranking_metrics(one, at=10, candidates=candidates) for one in scores]
        for name, values in found.items():
            mean = np.mean([order[name] for order in orders], 0)
            np.testing.assert_allclose(values, mean, atol=0.03, err_msg=name)


def test_what_is_no_number_comes_last():
    scores = np.array([[np.nan, 1.0, 2.0], [1.0, np.nan, 0.0], [0.0, -np.inf, 1.0]])
    found = ranking_metrics(scores, at=1)["hr@1"]
    assert found.tolist() == [0, 0, 0]
    assert ranking_metrics(scores, at=2)["hr@2"].tolist() == [0, 1, 1]

"""Metrics by hand: of examples, of orders of items, of a curve; and which way they get better."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import lower_is_better, main_metric
from fedpersonal.evaluation.statistics import auc
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


def test_an_area_by_hand():
    """Positives 3 and 1, negatives 2 and 1: of four pairs two are right and one ties."""
    assert auc([1, 1, 0, 0], [3.0, 1.0, 2.0, 1.0]) == pytest.approx(2.5 / 4)
    assert auc([0, 1], [-1.0, 1.0]) == 1
    assert auc([0, 1], [1.0, 1.0]) == 0.5


def test_an_area_pair_by_pair():
    random = np.random.default_rng(0)
    labels, scores = random.integers(0, 2, 200), random.integers(0, 20, 200).astype(np.float32)
    above = scores[labels == 1][:, np.newaxis] - scores[labels == 0]
    expected = ((above > 0) + 0.5 * (above == 0)).mean()
    assert auc(labels, scores) == pytest.approx(expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("labels", [[1, 1], [0, 0], []])
def test_one_class_has_no_area(labels):
    assert math.isnan(auc(labels, np.arange(len(labels))))


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([0, 1], [1, 2, 3], r"labels must have the shape \[3\], got \[2\]"),
        ([0, 1], [[1], [2]], r"scores must have the shape \[2\], got \[2, 1\]"),
        ([0, 1], [1, np.nan], "scores must be finite, row 1 is not"),
        ([0, 2], [1, 2], "labels must be 0 or 1"),
    ],
)
def test_an_area_is_refused(labels, scores, message):
    with pytest.raises(UserError, match=message):
        auc(labels, scores)


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("rmse", True),
        ("eval/unseen/loss", True),
        ("perplexity_after", True),
        ("mae", True),
        ("accuracy_without_oov_or_eos", False),
        ("train/auc", False),
        ("hr@10_all", False),
        ("ndcg@10", False),
        ("eval/auc_loss", True),
        ("loss_of_accuracy", True),
        ("accuracy_error_after", True),
        ("false_positives", True),
        ("mean_io_u", False),
        ("wobble", None),
        ("lossless", None),
    ],
)
def test_lower_is_better(name, lower):
    assert lower_is_better(name) is lower


def test_the_main_metric_is_the_plainest_of_the_most_telling():
    assert main_metric(["loss", "accuracy_without_oov", "accuracy"]) == "accuracy"
    assert main_metric(["mae", "loss", "rmse"]) == "rmse"
    assert main_metric(["wobble", "hr@10"]) == "hr@10"
    assert main_metric(["auc_loss", "accuracy"]) == "accuracy"
    assert main_metric(["wobble"]) is None
    assert main_metric([]) is None

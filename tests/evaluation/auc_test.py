"""The area under the ROC curve, by hand and pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.evaluation.auc import auc


def test_by_hand():
    """Positives 3 and 1, negatives 2 and 1: of four pairs two are right and one ties."""
    assert auc([1, 1, 0, 0], [3.0, 1.0, 2.0, 1.0]) == pytest.approx(2.5 / 4)
    assert auc([0, 1], [-1.0, 1.0]) == 1
    assert auc([0, 1], [1.0, 1.0]) == 0.5


def test_weights_count_examples_several_times():
    """Of pairs weighing 2 x 1, 2 x 3, 1 x 1 and 1 x 3, those of the 3 and the tie of the 1s."""
    area = auc([1, 1, 0, 0, 1], [3.0, 1.0, 2.0, 1.0, 0.0], weights=[2, 1, 1, 3, 0])
    assert area == pytest.approx((2 + 6 + 0 + 1.5) / 12)


def test_pair_by_pair():
    random = np.random.default_rng(0)
    labels, scores = random.integers(0, 2, 200), random.integers(0, 20, 200).astype(np.float32)
    weights = random.random(200)
    above = scores[labels == 1][:, np.newaxis] - scores[labels == 0]
    pairs = np.outer(weights[labels == 1], weights[labels == 0])
    expected = ((above > 0) * pairs + 0.5 * (above == 0) * pairs).sum() / pairs.sum()
    assert auc(labels, scores, weights=weights) == pytest.approx(expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("labels", "weights"), [([1, 1], None), ([0, 0], None), ([], None), ([0, 1], [1, 0])]
)
def test_one_class_has_no_area(labels, weights):
    assert math.isnan(auc(labels, np.arange(len(labels)), weights=weights))


@pytest.mark.parametrize(
    ("labels", "scores", "weights", "message"),
    [
        ([0, 1], [1, 2, 3], None, r"labels must have the shape \[3\], got \[2\]"),
        ([0, 1], [[1], [2]], None, r"scores must have the shape \[2\], got \[2, 1\]"),
        ([0, 1], [1, np.nan], None, "scores must be finite, row 1 is not"),
        ([0, 2], [1, 2], None, "labels must be 0 or 1"),
        ([0, 1], [1, 2], [1, -1], "weights must not be negative"),
        ([0, 1], [1, 2], [1], r"weights must have the shape \[2\], got \[1\]"),
    ],
)
def test_refuses(labels, scores, weights, message):
    with pytest.raises(UserError, match=message):
        auc(labels, scores, weights=weights)

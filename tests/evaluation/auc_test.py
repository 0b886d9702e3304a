"""The area under the ROC curve, by hand and pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.evaluation.statistics import auc


def test_by_hand():
    """Positives 3 and 1, negatives 2 and 1: of four pairs two are right and one ties."""
    assert auc([1, 1, 0, 0], [3.0, 1.0, 2.0, 1.0]) == pytest.approx(2.5 / 4)
    assert auc([0, 1], [-1.0, 1.0]) == 1
    assert auc([0, 1], [1.0, 1.0]) == 0.5


def test_pair_by_pair():
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
def test_refuses(labels, scores, message):
    with pytest.raises(UserError, match=message):
        auc(labels, scores)

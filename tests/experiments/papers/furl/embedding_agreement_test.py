"""Agreement of embeddings by hand, over all shuffles, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from experiments.papers.furl.embedding_agreement import (
    label_agreement,
    neighbour_agreement,
    value_agreement,
)
from fedpersonal.errors import UserError

# On a line; the nearest to each are users 1, 0, 1 and 2.
LINE = np.array([[0.0], [1.0], [3.0], [7.0]])


@pytest.mark.parametrize(
    ("second", "k", "expected"),
    [
        # Nearest: 1, 2, 1, 2.
        ([0, 5, 6, 20], 1, 3 / 4),
        # Both 0 and 1, of user 2, against 1 and 3; else the same.
        ([0, 1, 10, 11], 2, 7 / 8),
        ([0, 1, 10, 11], 3, 1),
    ],
)
def test_shared_neighbours_by_hand(second, k, expected):
    agreement = neighbour_agreement(LINE, np.array(second)[:, np.newaxis], k=k)
    assert agreement.measured == pytest.approx(expected)
    assert agreement.chance == pytest.approx(k / 3)


def test_labels_by_hand():
    agreement = label_agreement(LINE, ["a", "a", "b", "b"], k=1)
    assert agreement.measured == pytest.approx(3 / 4)
    assert agreement.chance == pytest.approx(1 / 3)


def test_values_by_hand():
    """Neighbours have 2, 1, 2 and 3, of ranks 2.5, 1, 2.5 and 4."""
    agreement = value_agreement(LINE, [1.0, 2.0, 3.0, 10.0], k=1)
    assert agreement.measured == pytest.approx(3 / np.sqrt(5 * 4.5))
    assert agreement.chance == 0


def test_chance_is_the_mean_over_all_shuffles():
    second, labels = np.array([[0.0], [5.0], [6.0], [20.0]]), np.array([0, 1, 1, 1])
    shuffles = [list(order) for order in itertools.permutations(range(4))]
    neighbours = [neighbour_agreement(LINE, second[order], k=2) for order in shuffles]
    alike = [label_agreement(LINE, labels[order], k=2) for order in shuffles]
    for agreements in (neighbours, alike):
        mean = np.mean([agreement.measured for agreement in agreements])
        assert mean == pytest.approx(agreements[0].chance)


def test_how_an_embedding_lies_is_of_no_matter():
    random = np.random.default_rng(0)
    first = random.normal(size=[60, 5])
    turn, _ = np.linalg.qr(random.normal(size=[5, 5]))
    assert neighbour_agreement(first, 100 * first @ turn + 3, k=7).measured == 1
    stretched = neighbour_agreement(first, first * [1, 1, 1, 1, 100], k=7)
    assert stretched.chance < stretched.measured < 0.6


def test_users_who_are_all_alike_agree_by_chance_only():
    """Users of a label stand side by side; taking the first of a tie would find them alike."""
    same = np.ones([300, 2])
    labels = np.repeat(np.arange(3), 100)
    values = labels + np.linspace(0, 0.1, 300)
    for agreement in (
        neighbour_agreement(same, same),
        label_agreement(same, labels),
        value_agreement(same, values),
    ):
        assert agreement.measured == pytest.approx(agreement.chance, abs=0.15)


def test_values_that_are_all_equal_agree_with_nothing():
    assert np.isnan(value_agreement(LINE, [7, 7, 7, 7], k=1).measured)


@pytest.mark.parametrize(
    ("measure", "arguments", "k", "message"),
    [
        (neighbour_agreement, (LINE, LINE[:3]), 1, r"second must have the shape \[4, dimensions"),
        (
            neighbour_agreement,
            (LINE, LINE),
            4,
            "k=4 neighbours need more than 4 users, there are 4",
        ),
        (neighbour_agreement, (LINE, LINE), 0, "k must be a whole number >= 1, got 0"),
        (neighbour_agreement, (LINE, [[0], [1], [np.inf], [1]]), 1, "second must be .*, row 2"),
        (neighbour_agreement, (LINE[:, 0], LINE), 1, r"first must have the shape .*, got \[4\]"),
        (label_agreement, (LINE[:, :0], [0, 1, 1, 1]), 1, r"embeddings .*, got \[4, 0\]"),
        (label_agreement, (LINE, [0, 1, 1]), 1, r"labels must have the shape \[4\], got \[3\]"),
        (label_agreement, (LINE, np.zeros([4, 1])), 1, r"labels .* \[4\], got \[4, 1\]"),
        (value_agreement, (LINE, [0, 1, np.nan, 1]), 1, "values must be finite, row 2 is not"),
    ],
)
def test_refuses(measure, arguments, k, message):
    with pytest.raises(UserError, match=message):
        measure(*arguments, k=k)

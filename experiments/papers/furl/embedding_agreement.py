"""How alike two embeddings of the same users are, and how well one tells what users are like.

All is read off each user's nearest neighbours by Euclidean distance, as t-SNE's maps are. They stay
the same when an embedding is turned, mirrored, moved, or scaled along all axes at once, which is
how embeddings that mean the same may differ between two trainings.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr
from sklearn.neighbors import NearestNeighbors

from fedpersonal.data.checks import check_count
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.evaluation.column_checks import check_column, check_embeddings, check_numbers


@dataclasses.dataclass(frozen=True)
class Agreement:
    """A measure of agreement, and what it is on average by chance.

    Attributes:
        measured: The measure, 1 at most.
        chance: Its expectation were the users of the embedding, or of one of two, shuffled.
    """

    measured: float
    chance: float

    def __str__(self) -> str:
        return f"{self.measured:.2f} (chance {self.chance:.2f})"


def neighbour_agreement(first: npt.ArrayLike, second: npt.ArrayLike, *, k: int = 10) -> Agreement:
    """Returns the share of a user's `k` nearest neighbours that two embeddings agree on.

    Args:
        first: (num_users, dimensions) floats.
        second: (num_users, other dimensions) floats of the same users.
        k: How many neighbours each user has.

    Raises:
        UserError: If an embedding is not finite, there are not more than `k` users, or they are not
            as many in both.
    """
    first = check_embeddings("first", first)
    second = check_embeddings("second", second, num_users=len(first))
    in_first, in_second = _neighbours(first, k, seed=1), _neighbours(second, k, seed=2)
    shared = (in_first[:, :, np.newaxis] == in_second[:, np.newaxis, :]).any(axis=2)
    return Agreement(float(shared.mean()), k / (len(first) - 1))


def label_agreement(embeddings: npt.ArrayLike, labels: npt.ArrayLike, *, k: int = 10) -> Agreement:
    """Returns the share of a user's nearest neighbours that have the user's own label.

    Arguments and errors are those of `neighbour_agreement`; `labels` are (num_users,) of anything
    that can be sorted.
    """
    embeddings = check_embeddings("embeddings", embeddings)
    labels = check_column("labels", labels, len(embeddings))
    alike = labels[_neighbours(embeddings, k)] == labels[:, np.newaxis]
    _, counts = np.unique(labels, return_counts=True)
    pairs = len(labels) * (len(labels) - 1)
    return Agreement(float(alike.mean()), float((counts * (counts - 1)).sum() / pairs))


def value_agreement(embeddings: npt.ArrayLike, values: npt.ArrayLike, *, k: int = 10) -> Agreement:
    """Returns Spearman's rank correlation of a user's value with the mean of the neighbours'.

    Arguments and errors are those of `neighbour_agreement`; `values` are (num_users,) floats, such
    as click rates. Where all means are equal, the correlation is NaN.
    """
    embeddings = check_embeddings("embeddings", embeddings)
    values = check_numbers("values", values, len(embeddings))
    means = values[_neighbours(embeddings, k)].mean(axis=1)
    if np.ptp(means) == 0:
        return Agreement(math.nan, 0.0)
    return Agreement(float(spearmanr(values, means)[0]), 0.0)


def _neighbours(embeddings: np.ndarray, k: int, *, seed: int = 0) -> np.ndarray:
    """Returns the rows of each user's nearest neighbours, in no order: integers (num_users, k)."""
    num_users = len(embeddings)
    if num_users <= check_count("k", k, minimum=1):
        raise UserError(f"k={k} neighbours need more than {k} users, there are {num_users}")
    # Among users who are equally near, the search prefers some rows. Shuffled, these are anyone's:
    # users who were never trained, for instance, would otherwise agree with each other.
    shuffled = generator(Purpose.NEIGHBOURS, seed).permutation(num_users)
    nearest = NearestNeighbors(n_neighbors=k).fit(embeddings[shuffled])
    neighbours = np.empty([num_users, k], np.int64)
    neighbours[shuffled] = shuffled[nearest.kneighbors(return_distance=False)]
    return neighbours

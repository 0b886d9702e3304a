"""Rows of a long array that belong together, taken many groups at once."""

from __future__ import annotations

import numpy as np


def group_rows(offsets: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists the rows of some groups, where group `i` owns rows `offsets[i]:offsets[i + 1]`.

    Args:
        offsets: (num_groups + 1,) int64, ascending.
        groups: (n,) integers in [0, num_groups), repeats allowed.

    Returns:
        The rows, (m,) int64, group after group, and the groups' offsets among them,
        (n + 1,) int64.
    """
    counts = np.diff(offsets)[groups]
    taken = np.append(0, np.cumsum(counts)).astype(np.int64)
    return np.arange(taken[-1]) + np.repeat(offsets[groups] - taken[:-1], counts), taken

"""Checks of arrays that have a row for each user or example."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedpersonal.errors import UserError


def check_column(name: str, column: npt.ArrayLike, length: int) -> np.ndarray:
    """Returns `column` as an array; a UserError names it unless its shape is (length,)."""
    column = np.asarray(column)
    if column.shape != (length,):
        raise UserError(f"{name} must have the shape [{length}], got {list(column.shape)}")
    return column


def check_numbers(name: str, column: npt.ArrayLike, length: int) -> np.ndarray:
    """Returns `column` as float64 (length,), once it is also known to be finite."""
    column = check_column(name, column, length).astype(np.float64)
    check_finite(name, column)
    return column


def check_embeddings(
    name: str, embeddings: npt.ArrayLike, *, num_users: int | None = None
) -> np.ndarray:
    """Returns `embeddings` as finite float64 (num_users, dimensions), of any number for None."""
    embeddings = np.asarray(embeddings, np.float64)
    rows = "users" if num_users is None else num_users
    if embeddings.ndim != 2 or not embeddings.size or rows not in ("users", len(embeddings)):
        raise UserError(
            f"{name} must have the shape [{rows}, dimensions], got {list(embeddings.shape)}"
        )
    check_finite(name, embeddings)
    return embeddings


def check_finite(name: str, numbers: np.ndarray) -> None:
    """Raises a UserError that names the first row that is not finite, if there is one."""
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        raise UserError(f"{name} must be finite, row {bad[0][0]} is not")

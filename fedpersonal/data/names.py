"""Names of clients and of items in rows of a table, numbered in one order, whatever they are of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from fedpersonal.data.checks import check_distinct, check_names
from fedpersonal.errors import UserError


def number_names(
    what: str, names: pd.Series | pd.Categorical | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers names in their order: as numbers if all are whole numbers, else as text.

    Which type has the names, in which order its categories are, and what the index is, makes no
    difference.

    Args:
        what: What has the names, such as "user".
        names: (n,) texts or numbers, which become text.

    Returns:
        The number of each row's name, (n,) int64, and the distinct names, str objects.

    Raises:
        UserError: If a name is missing, has a NUL character or is not Unicode, or if some are texts
            and some numbers.
    """
    column = pd.Series(names)
    # First: pandas takes such names for others.
    check_names(f"{what}s", map(str, getattr(column.array, "categories", column)))
    codes, found = pd.factorize(column)
    if (codes < 0).any():
        raise UserError(f"row {int(np.argmax(codes < 0)) + 1} names no {what}")
    if len({isinstance(name, str) for name in found}) > 1:
        raise UserError(f"rows name {what}s by texts and by numbers; make all texts")
    texts = [str(name) for name in found]
    check_distinct(f"{what}s", texts)
    order = np.array(sorted(range(len(texts)), key=_order_of(texts)), np.int64)
    return np.argsort(order)[codes], np.array(texts, object)[order]


def _order_of(texts: list[str]) -> Callable[[int], tuple[int, str] | str]:
    """Returns what to sort places of texts by."""
    # Eighteen digits fit into an int64, and into the time that parsing may take.
    if all(text.isdecimal() and len(text) <= 18 for text in texts):
        return lambda place: (int(texts[place]), texts[place])
    return texts.__getitem__

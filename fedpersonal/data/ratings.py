"""Ratings that users gave to items, numbered and sorted, from any table of them."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pandas as pd

from fedpersonal.data.checks import check_count
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.table_files import TextTable, read_table
from fedpersonal.errors import UserError


# Generated equality would compare arrays for truth, which NumPy refuses: identity it is.
@dataclasses.dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings, sorted by user, and a user's by time (or as they came, if there are no times).

    Attributes:
        name: What the ratings are, such as "movielens-100k".
        users: (n,) int32 in [0, num_users), ascending.
        items: (n,) int32 in [0, num_items).
        ratings: (n,) float32, finite.
        times: (n,) int64 seconds, or None.
        user_ids: (num_users,) the users' original names, str objects.
        item_ids: (num_items,) the items' original names, str objects.
        dropped_users: How many users were left out for having too few ratings.
        duplicates: How many ratings were left out because the same user rated the same item
            again later.
    """

    name: str
    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray
    times: np.ndarray | None
    user_ids: np.ndarray
    item_ids: np.ndarray
    dropped_users: int = 0
    duplicates: int = 0

    @property
    def num_users(self) -> int:
        """How many users there are."""
        return self.user_ids.size

    @property
    def num_items(self) -> int:
        """How many items there are."""
        return self.item_ids.size

    @property
    def num_ratings(self) -> int:
        """How many ratings there are."""
        return self.ratings.size

    def summary(self) -> str:
        """Returns a line that says what there is, and what was left out."""
        dropped = (
            f"; {self.dropped_users} users with too few left out" if self.dropped_users else ""
        )
        twice = f"; {self.duplicates} rated twice" if self.duplicates else ""
        return (
            f"{self.name}: {self.num_ratings:,} ratings of {self.num_users:,} users "
            f"for {self.num_items:,} items{dropped}{twice}"
        )

    def describe(self) -> dict[str, object]:
        """Returns what tells these ratings from others."""
        return {"dataset": self.name, "num_ratings": self.num_ratings, "num_users": self.num_users}


def to_client_dataset(ratings: Ratings) -> ClientDataset:
    """Makes each user a client, in the order of the users and of each user's ratings.

    Args:
        ratings: The ratings; their times are left behind.

    Returns:
        A dataset with the features "user" and "item", (n,) int32, and the ratings as labels,
        (n,) float32.
    """
    counts = np.bincount(ratings.users, minlength=ratings.num_users)
    return ClientDataset(
        client_ids=ratings.user_ids,
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        features={"user": ratings.users, "item": ratings.items},
        labels=ratings.ratings,
    )


def read_ratings(
    path: str | os.PathLike,
    *,
    user_column: str = "user",
    item_column: str = "item",
    rating_column: str = "rating",
    time_column: str | None = "time",
    min_ratings: int = 1,
    name: str | None = None,
) -> Ratings:
    """Reads the ratings of a .csv, .tsv or .jsonl file (.json means the same), gzipped or not.

    Args:
        path: The file; its extension tells the format, and `.gz` after it the compression.
        user_column: The column of the users' names.
        item_column: The column of the items' names.
        rating_column: The column of the ratings, finite numbers.
        time_column: The column of the times, numbers of seconds; None for no times. The
            default may be missing from the file, any other name may not.
        min_ratings: Users with fewer ratings, duplicates not counted, are left out.
        name: What to call the ratings; None for the file's name without its extensions.

    Returns:
        The ratings, as `number_ratings` makes them.

    Raises:
        UserError: If the file cannot be read, lacks a column, or has an empty user or item, a
            rating or time that is no finite number, or no user with `min_ratings` ratings.
    """
    check_count("min_ratings", min_ratings, minimum=1)
    path = os.fspath(path)
    required, optional = [user_column, item_column, rating_column], []
    if time_column is not None:
        (optional if time_column == "time" else required).append(time_column)
    table = read_table(path, required, optional=optional)
    return ratings_from_table(
        table,
        columns=(user_column, item_column, rating_column, time_column),
        min_ratings=min_ratings,
        name=os.path.basename(path).split(".")[0] if name is None else name,
    )


def ratings_from_table(
    table: TextTable,
    *,
    columns: tuple[str, str, str, str | None],
    name: str,
    min_ratings: int = 1,
) -> Ratings:
    """Makes ratings of a table's columns of text.

    Args:
        table: Where the columns are.
        columns: The names of the columns of users, items, ratings and times; the last may be
            None or missing from the table.
        name: What to call the ratings.
        min_ratings: Users with fewer ratings are left out.

    Returns:
        The ratings, as `number_ratings` makes them.

    Raises:
        UserError: As `read_ratings`, for what the table holds.
    """
    user_column, item_column, rating_column, time_column = columns
    for column in (user_column, item_column):
        texts = table.columns[column]
        blank = np.array([not text.strip() for text in texts.categories], bool)
        _refuse(table, column, blank[texts.codes], "is empty")
    ratings = _numbers(table, rating_column, np.float32)
    times = None
    if time_column in table.columns:
        times = _numbers(table, time_column, np.float64)
        # Beyond 2**53 a float64 no longer tells two seconds apart, nor need it here.
        _refuse(table, time_column, np.abs(times) > 2**53, "is too large for seconds")
        times = np.floor(times).astype(np.int64)
    try:
        return number_ratings(
            table.columns[user_column],
            table.columns[item_column],
            ratings,
            times,
            name=name,
            min_ratings=min_ratings,
        )
    except UserError as error:
        raise UserError(f"{table.path}: {error}") from None


def _numbers(table: TextTable, column: str, dtype: type) -> np.ndarray:
    """Returns a column as finite numbers of a float `dtype`."""
    texts = table.columns[column]
    numbers = pd.to_numeric(texts.categories, errors="coerce").to_numpy(np.float64)
    with np.errstate(over="ignore"):
        numbers = numbers.astype(dtype)[texts.codes]
    _refuse(table, column, ~np.isfinite(numbers), "is not a finite number")
    return numbers


def _refuse(table: TextTable, column: str, wrong: np.ndarray, why: str):
    """Raises a `UserError` that names the first of the `wrong` (n,) bool records, if any."""
    if wrong.any():
        first = int(wrong.argmax())
        text = table.columns[column][first]
        raise UserError(
            f"{table.path}, line {table.line_of(first)}: {column!r} {why}: {text[:60]!r}"
        )


def number_ratings(
    users: pd.Categorical | np.ndarray,
    items: pd.Categorical | np.ndarray,
    ratings: np.ndarray,
    times: np.ndarray | None = None,
    *,
    name: str,
    min_ratings: int = 1,
) -> Ratings:
    """Numbers the users and items, sorts the ratings, and leaves out what is too little.

    Users and items are numbered in the order of their names: as numbers if all of them are
    whole numbers, else as text. A user's later rating of an item replaces the earlier one,
    where later means by time, and as given among equal times. Items that only users left out
    have rated are left out too.

    Args:
        users: (n,) names, categories or an array of str.
        items: (n,) names, alike.
        ratings: (n,) finite numbers.
        times: (n,) int64 seconds, or None.
        name: What to call the ratings.
        min_ratings: Users with fewer ratings are left out.

    Returns:
        The ratings.

    Raises:
        UserError: If no user has `min_ratings` ratings.
    """
    check_count("min_ratings", min_ratings, minimum=1)
    users, user_ids = _numbered(pd.Categorical(users))
    items, item_ids = _numbered(pd.Categorical(items))
    order = np.argsort(users, kind="stable") if times is None else np.lexsort((times, users))
    total = order.size

    # A pair's last place in the order is its first in the order reversed.
    pairs = users[order].astype(np.int64) * item_ids.size + items[order]
    _, from_end = np.unique(pairs[::-1], return_index=True)
    order = order[np.sort(total - 1 - from_end)]
    duplicates = total - order.size

    counts = np.bincount(users[order], minlength=user_ids.size)
    enough = counts >= min_ratings
    if not enough.any():
        raise UserError(
            f"no user has min_ratings={min_ratings} ratings; the most that one has is"
            f" {counts.max(initial=0)}"
        )
    order = order[enough[users[order]]]
    rated = np.bincount(items[order], minlength=item_ids.size) > 0
    return Ratings(
        name=name,
        users=(np.cumsum(enough) - 1)[users[order]].astype(np.int32),
        items=(np.cumsum(rated) - 1)[items[order]].astype(np.int32),
        ratings=np.asarray(ratings, np.float32)[order],
        times=None if times is None else np.asarray(times, np.int64)[order],
        user_ids=user_ids[enough],
        item_ids=item_ids[rated],
        dropped_users=int((~enough).sum()),
        duplicates=duplicates,
    )


def _numbered(names: pd.Categorical) -> tuple[np.ndarray, np.ndarray]:
    """Returns each name's number, (n,), and the names in order, (num_names,) str objects."""
    categories = [str(category) for category in names.categories]
    # Eighteen digits fit into an int64, and into the time that parsing may take.
    if all(category.isdecimal() and len(category) <= 18 for category in categories):
        keys = [(int(category), category) for category in categories]
    else:
        keys = categories
    order = sorted(range(len(categories)), key=keys.__getitem__)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[names.codes], np.array(categories, object)[order]

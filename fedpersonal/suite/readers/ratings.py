"""Users' ratings of items, numbered and sorted, read from any table."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import pandas as pd

from fedpersonal.data.clients import ClientDataset, number_names
from fedpersonal.data.formats import Column
from fedpersonal.data.sources import LoadedData, check_count, prefix_errors
from fedpersonal.data.tables import named_columns, read_table, time_columns
from fedpersonal.errors import UserError
from fedpersonal.suite.readers.ranking import candidates_suffix

RatingsT = TypeVar("RatingsT", bound="Ratings")


@dataclasses.dataclass(frozen=True, eq=False)
class Ratings(LoadedData):
    """Ratings, sorted by user, then by time (or in the original order, without times).

    Attributes:
        name: The name of the ratings, such as "movielens-100k".
        users: (n,) int32 in [0, num_users), ascending.
        items: (n,) int32 in [0, num_items).
        ratings: (n,) float32, finite.
        times: (n,) int64 seconds, or None.
        user_ids: (num_users,) the users' original names, str objects.
        item_ids: (num_items,) the items' original names, str objects.
        report: Reason to the number left out: users with too few ratings, their ratings, and
            ratings of an item that the same user rated again later.
    """

    name: str
    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray
    times: np.ndarray | None
    user_ids: np.ndarray
    item_ids: np.ndarray
    report: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of ratings, users and items."""
        arrays = {"ratings": self.ratings, "users": self.user_ids, "items": self.item_ids}
        return {f"num_{noun}": array.size for noun, array in arrays.items()}

    @property
    def candidates_suffix(self) -> str:
        """The suffix of metrics' names for the number of ranked items, the same for all seeds."""
        num_rated = np.bincount(self.users, minlength=self.user_ids.size)
        return candidates_suffix(num_rated, self.item_ids.size)

    @property
    def client_ids(self) -> np.ndarray:
        """The users' names, (num_users,) str objects."""
        return self.user_ids

    def subset(self: RatingsT, client_indices: np.ndarray) -> RatingsT:
        """Returns the ratings of the given users, and the items that these have rated.

        Args:
            client_indices: (n,) integers in [0, num_users), ascending.
        """
        return _ratings_of_users(self, np.isin(np.arange(self.user_ids.size), client_indices))

    def to_client_dataset(self) -> ClientDataset:
        """Makes each user a client, in the order of the users and of each user's ratings.

        The features are "user" and "item", (n,) int32; the labels are the ratings, (n,) float32.
        """
        counts = np.bincount(self.users, minlength=self.user_ids.size)
        features = {"user": self.users, "item": self.items}
        return ClientDataset(self.user_ids, np.append(0, np.cumsum(counts)), features, self.ratings)


def read_ratings(
    path: str | os.PathLike,
    *,
    user_column: str = "user",
    item_column: str = "item",
    rating_column: str | None = "rating",
    time_column: str | None = "time",
    min_ratings: int = 1,
    name: str | None = None,
) -> Ratings:
    """Reads the ratings of a table by `read_table`; a bad row is an error.

    Ratings are finite numbers; without a `rating_column` all are 1. `time_column` is as of
    `time_columns`, and `min_ratings` as of `number_ratings`. `name` defaults to the file's name
    without extensions.
    """
    check_count("min_ratings", min_ratings, minimum=1)
    columns = named_columns(user_column=user_column, item_column=item_column)
    if rating_column is not None:
        columns.append(Column(rating_column, "real", option="rating_column"))
    table = read_table(path, [*columns, *time_columns(time_column)], bad_rows="refuse")
    users, items, *times = table.columns.values()
    ratings = np.ones(len(users), np.float32) if rating_column is None else times.pop(0)
    if time_column in table.columns:
        # Beyond 2**53 a float64 cannot distinguish two seconds.
        table.refuse(time_column, np.abs(times[0]) > 2**53, "is too large for seconds")
        times = [np.floor(times[0]).astype(np.int64)]
    name = table.name if name is None else name
    with prefix_errors(table.file.path):
        return number_ratings(users, items, ratings, *times, name=name, min_ratings=min_ratings)


def number_ratings(
    users: pd.Categorical | np.ndarray,
    items: pd.Categorical | np.ndarray,
    ratings: np.ndarray,
    times: np.ndarray | None = None,
    *,
    name: str,
    min_ratings: int = 1,
) -> Ratings:
    """Numbers users and items, sorts ratings, and leaves out users with few ratings.

    Users and items are numbered by `number_names`. A user's later rating of an item replaces the
    earlier one; equal times keep the order of the arguments. Items without a rating by a remaining
    user are left out, too.

    Args:
        users: (n,) names, categories or an array of str.
        items: (n,) names, categories or an array of str.
        ratings: (n,) finite numbers.
        times: (n,) int64 seconds, or None.
        name: The name of the ratings.
        min_ratings: Users with fewer ratings, repeated ones not counted, are left out, >= 1.

    Raises:
        UserError: As of `number_names`, or if no user has `min_ratings` ratings.
    """
    users, user_ids = number_names("user", users)
    items, item_ids = number_names("item", items)
    order = np.argsort(users, kind="stable") if times is None else np.lexsort((times, users))
    total = order.size

    # A pair's last place in the order is its first place in the reversed order.
    pairs = users[order].astype(np.int64) * item_ids.size + items[order]
    _, from_end = np.unique(pairs[::-1], return_index=True)
    order = order[np.sort(total - 1 - from_end)]
    report = {"ratings of an item rated again later": total - order.size}

    all_ratings = Ratings(
        name=name,
        users=users[order].astype(np.int32),
        items=items[order].astype(np.int32),
        ratings=np.asarray(ratings, np.float32)[order],
        times=None if times is None else np.asarray(times, np.int64)[order],
        user_ids=user_ids,
        item_ids=item_ids,
        report={reason: count for reason, count in report.items() if count},
    )
    return keep_users(all_ratings, min_ratings=min_ratings)


def keep_users(
    ratings: RatingsT, *, min_ratings: int = 1, max_ratings: int | None = None
) -> RatingsT:
    """Leaves out users with fewer or more ratings, and items without ratings of other users.

    Args:
        ratings: All ratings.
        min_ratings: Users with fewer are left out, >= 1.
        max_ratings: Users with more are left out; None for no bound.

    Raises:
        UserError: If no user remains.
    """
    most, bound = len(ratings.users), f"min_ratings={min_ratings}"
    if max_ratings is not None:
        most = check_count("max_ratings", max_ratings, minimum=1)
        bound += f" to max_ratings={most}"
    check_count("min_ratings", min_ratings, minimum=1)
    counts = np.bincount(ratings.users, minlength=ratings.user_ids.size)
    has_few, has_many = counts < min_ratings, counts > most
    kept = ~(has_few | has_many)
    if not kept.any():
        raise UserError(
            f"no user has {bound} ratings; the most that one has is {counts.max(initial=0)}"
        )
    left_out = {
        f"users with fewer than {min_ratings} ratings": int(has_few.sum()),
        f"users with more than {most} ratings": int(has_many.sum()),
        "ratings of these users": int(counts[~kept].sum()),
    }
    report = {**ratings.report, **{reason: n for reason, n in left_out.items() if n}}
    remaining = _ratings_of_users(ratings, kept)
    if remaining is ratings:
        return ratings
    return dataclasses.replace(remaining, report=report)


def _ratings_of_users(ratings: RatingsT, kept: np.ndarray) -> RatingsT:
    """Returns the ratings of the users of a mask, bool (num_users,), and their items."""
    chosen = kept[ratings.users]
    rated = np.bincount(ratings.items[chosen], minlength=ratings.item_ids.size) > 0
    if kept.all() and rated.all():
        return ratings
    return dataclasses.replace(
        ratings,
        users=(np.cumsum(kept) - 1)[ratings.users[chosen]].astype(np.int32),
        items=(np.cumsum(rated) - 1)[ratings.items[chosen]].astype(np.int32),
        ratings=ratings.ratings[chosen],
        times=None if ratings.times is None else ratings.times[chosen],
        user_ids=ratings.user_ids[kept],
        item_ids=ratings.item_ids[rated],
    )

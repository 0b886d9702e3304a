"""Ratings: tables, what is left out, and mistakes in one line."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers.ratings import keep_users, number_ratings, read_ratings


def _rows(ratings) -> list[tuple]:
    """The ratings in their order, under their original names."""
    times = [None] * ratings.ratings.size if ratings.times is None else ratings.times.tolist()
    users, items = ratings.user_ids[ratings.users], ratings.item_ids[ratings.items]
    return list(zip(users, items, ratings.ratings.tolist(), times))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("timed", [True, False])
def test_number_ratings_equals_pandas(seed, timed):
    rng = np.random.default_rng(seed)
    n = 300
    table = pd.DataFrame(
        {
            "user": rng.integers(0, 30, n).astype(str),
            "item": rng.integers(0, 15, n).astype(str),
            "rating": rng.integers(1, 6, n).astype(np.float32),
            "time": rng.integers(0, 20, n),
        }
    )
    times = table["time"].to_numpy() if timed else None
    ratings = number_ratings(
        table["user"].to_numpy(),
        table["item"].to_numpy(),
        table["rating"].to_numpy(),
        times,
        name="made up",
        min_ratings=9,
    )

    expected = table.assign(number=table["user"].astype(int))
    expected = expected.sort_values(["number", "time"] if timed else "number", kind="stable")
    expected = expected.drop_duplicates(["user", "item"], keep="last")
    again = n - len(expected)
    sizes = expected.groupby("user").size()
    expected = expected[expected["user"].isin(sizes.index[sizes >= 9])]
    assert ratings.report == {
        "ratings of an item rated again later": again,
        "users with fewer than 9 ratings": (sizes < 9).sum(),
        "ratings of these users": sizes[sizes < 9].sum(),
    }
    kept = expected["time"] if timed else [None] * len(expected)
    assert _rows(ratings) == list(zip(expected["user"], expected["item"], expected["rating"], kept))
    assert ratings.user_ids.tolist() == sorted(set(expected["user"]), key=int)
    assert ratings.item_ids.tolist() == sorted(set(expected["item"]), key=int)
    assert (ratings.users.dtype, ratings.ratings.dtype) == (np.int32, np.float32)


def test_users_are_kept_by_their_number_of_ratings():
    users, items = np.repeat(["a", "b", "c"], [1, 2, 3]), np.array(list("xxyxyz"))
    ratings = number_ratings(users, items, np.arange(6.0), np.arange(6), name="made up")
    assert keep_users(ratings, min_ratings=1, max_ratings=3) is ratings
    kept = keep_users(ratings, min_ratings=2, max_ratings=2)
    assert _rows(kept) == [("b", "x", 1.0, 1), ("b", "y", 2.0, 2)]
    assert kept.item_ids.tolist() == ["x", "y"]
    assert kept.report == {
        "users with fewer than 2 ratings": 1,
        "users with more than 2 ratings": 1,
        "ratings of these users": 4,
    }
    with pytest.raises(UserError, match="no user has min_ratings=4 to max_ratings=9 .* has is 3"):
        keep_users(ratings, min_ratings=4, max_ratings=9)
    with pytest.raises(UserError, match="max_ratings must be .*0"):
        keep_users(ratings, max_ratings=0)


def test_to_client_dataset():
    users, items = np.array(["b", "a", "b"]), np.array(["x", "y", "y"])
    dataset = number_ratings(users, items, np.array([1, 2, 3]), name="n").to_client_dataset()
    assert dataset.client_ids.tolist() == ["a", "b"]
    features, labels = dataset.client(1)
    assert (features["user"].tolist(), features["item"].tolist()) == ([1, 1], [0, 1])
    assert labels.tolist() == [1.0, 3.0]
    assert (features["item"].dtype, labels.dtype) == (np.int32, np.float32)


def test_times_order_ratings_and_lose_their_fractions(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('user,item,rating,time\nann,"m,1",4.5,30\nann,m2,2,10.75\nNA,m2,1,20\n')
    assert _rows(read_ratings(path)) == [
        ("NA", "m2", 1, 20),
        ("ann", "m2", 2, 10),
        ("ann", "m,1", 4.5, 30),
    ]
    untimed = read_ratings(path, time_column=None)
    assert _rows(untimed)[1:] == [("ann", "m,1", 4.5, None), ("ann", "m2", 2, None)]


def test_columns_and_options(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("stars,who,extra,what,when\n1,a,,x,5\n2,a,,x,4\n3,b,,m,9\n4,a,,y,1\n")
    columns = dict(user_column="who", item_column="what", rating_column="stars")
    untimed = read_ratings(path, **columns, name="mine")
    assert _rows(untimed) == [
        ("a", "x", 2.0, None),
        ("a", "y", 4.0, None),
        ("b", "m", 3.0, None),
    ]
    assert untimed.summary() == (
        "mine: 3 ratings of 2 users, 3 items; 1 rating of an item rated again later"
    )
    sizes = {"num_users": 2, "num_items": 3, "num_ratings": 3}
    assert untimed.describe() == {"dataset": "mine", **sizes}
    timed = read_ratings(path, **columns, time_column="when", min_ratings=2)
    assert _rows(timed) == [("a", "y", 4.0, 1), ("a", "x", 1.0, 5)]
    assert timed.report == {
        "ratings of an item rated again later": 1,
        "users with fewer than 2 ratings": 1,
        "ratings of these users": 1,
    }
    assert timed.fingerprint() != untimed.fingerprint()
    # Only the user left out had rated "m".
    assert (untimed.item_ids.tolist(), timed.item_ids.tolist()) == (["m", "x", "y"], ["x", "y"])


_HEADER = "user,item,rating"
_FEW = f"{_HEADER}\na,x,3\na,y,3\na,y,4\nb,x,3\n"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (f"{_HEADER}\na,b,3\na,c,good\n", {}, ", line 3: 'rating' is not a .* number: 'good'$"),
        (f"{_HEADER},time\na,b,3,1e17\n", {}, ", line 2: 'time' is too large for .*: '1e17'$"),
        (
            "user,movie\na,b\n",
            {},
            ": there are no columns 'item', 'rating'; the columns are user, movie; say by "
            "--item_column and --rating_column which ones are meant$",
        ),
        (_FEW, {"time_column": "when"}, ": there is no column 'when'; .* --time_column which one"),
        ("item,user,rating,item\n", {}, ": two columns are called 'item'$"),
        (_FEW, {"min_ratings": 3}, ": no user has min_ratings=3 ratings; .* that one has is 2$"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, content, options, message):
    path = tmp_path / "r.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=f"^{re.escape(str(path))}{message}") as caught:
        read_ratings(path, **options)
    assert "\n" not in str(caught.value)

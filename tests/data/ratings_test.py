"""Ratings: tables, what is left out, and mistakes in one line."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedpersonal.data.ratings import keep_users, number_ratings, read_ratings
from fedpersonal.errors import UserError


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


def test_names_that_are_not_all_numbers_are_sorted_as_text():
    users = np.array(["10", "9", "x", "9"])
    ratings = number_ratings(users, np.array(["07", "7", "7", "10"]), np.ones(4), name="n")
    assert ratings.user_ids.tolist() == ["10", "9", "x"]
    assert ratings.item_ids.tolist() == ["07", "7", "10"]


@pytest.mark.parametrize(
    ("users", "said"),
    [
        (["x\0anna", "x\0bert"], r"^users: 'x\\x00anna' has a NUL character$"),
        (["a", "\ud800"], r"^users: '\\ud800' is not Unicode text$"),
    ],
)
def test_names_that_pandas_takes_for_others_are_refused(users, said):
    items = np.array(["x", "y"], object)
    with pytest.raises(UserError, match=said):
        number_ratings(np.array(users, object), items, np.ones(2), name="n")
    with pytest.raises(UserError, match=said.replace("users", "items")):
        number_ratings(items, np.array(users, object), np.ones(2), name="n")


def test_to_client_dataset():
    users, items = np.array(["b", "a", "b"]), np.array(["x", "y", "y"])
    dataset = number_ratings(users, items, np.array([1, 2, 3]), name="n").to_client_dataset()
    assert dataset.client_ids.tolist() == ["a", "b"]
    features, labels = dataset.client(1)
    assert (features["user"].tolist(), features["item"].tolist()) == ([1, 1], [0, 1])
    assert labels.tolist() == [1.0, 3.0]
    assert (features["item"].dtype, labels.dtype) == (np.int32, np.float32)


_RECORDS = [
    {"user": "ann", "item": "m,1", "rating": 4.5, "time": 30},
    {"user": "ann", "item": "m2", "rating": 2, "time": 10.75},
    {"user": "NA", "item": "m2", "rating": 1, "time": 20},
]
_READ = [("NA", "m2", 1.0, 20), ("ann", "m2", 2.0, 10), ("ann", "m,1", 4.5, 30)]


def test_every_format_reads_alike(write_in_any_format):
    ratings = read_ratings(write_in_any_format(_RECORDS))
    assert _rows(ratings) == _READ
    assert ratings.name == "mine"


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


def test_times_may_be_dates(tmp_path):
    path = tmp_path / "r.csv"
    dates = ["1970-01-02", "1970-01-01T00:00:10.75Z", "1970-01-01T01:00:20+01:00"]
    path.write_text("user,item,rating,time\n" + "".join(f"a,{t[-3:]},1,{t}\n" for t in dates))
    assert read_ratings(path).times.tolist() == [10, 20, 86400]


_HEADER = "user,item,rating,time\n"
_RECORD = '{"user": 1, "item": 2, "rating": 3}\n'


def _message(path, content: str | bytes, **options) -> str:
    """What is said against a file of this content, after the file's name."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        read_ratings(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message[len(str(path)) :]


@pytest.mark.parametrize(
    ("row", "column", "why"),
    [
        ("a,c,good,2", "rating", "is not a finite number: 'good'"),
        ("a,b,,1", "rating", "is not a finite number: ''"),
        ("a,b", "rating", "is not a finite number: ''"),
        ("a,b,nan,1", "rating", "is not a finite number: 'nan'"),
        ("a,b,-inf,1", "rating", "is not a finite number: '-inf'"),
        ("a,b,1e39,1", "rating", "is not a finite number: '1e39'"),
        ("a,b,3,noon", "time", "is neither a number nor an ISO 8601 date: 'noon'"),
        ("a,b,3,1e17", "time", "is too large for seconds: '1e17'"),
        (",b,3,1", "user", "is empty: ''"),
        (",,,", "user", "is empty: ''"),
        ('""', "user", "is empty: ''"),
        ("a, ,3,1", "item", "is empty: ' '"),
    ],
)
@pytest.mark.parametrize(
    ("above", "line"),
    [
        ("", 2),
        ("a,b,3,1\n", 3),
        ("a,b,3,1\r\n", 3),
        # Blank lines and quoted line breaks count as an editor counts them.
        ("\n  \n", 4),
        ('"a\n\nb",c,3,1\n\n', 6),
    ],
)
def test_bad_values_in_csv(tmp_path, above, line, row, column, why):
    content = f"{_HEADER}{above}{row}\nz,z,3,1\n{row}\n"
    assert _message(tmp_path / "r.csv", content) == f", line {line}: {column!r} {why}"
    tabs = content.replace(",", "\t")
    assert _message(tmp_path / "r.tsv", tabs) == f", line {line}: {column!r} {why}"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{user: 1}", "not a JSON object"),
        ("[1, 2, 3]", "not a JSON object, but a list or its start; each line must be an object"),
        (
            '{"user": 1, "item": 2}',
            "there is no column 'rating'; the columns are user, item; say by --rating_column which "
            "one is meant",
        ),
        (_RECORD.replace("1", "null"), "'user' is empty: ''"),
        (_RECORD.replace("2", '""'), "'item' is empty: ''"),
        (_RECORD.replace("3", '"x"'), "'rating' is not a finite number: 'x'"),
        (_RECORD.replace("3", "NaN"), "'rating' is not a finite number: 'nan'"),
        (_RECORD.replace("3", "true"), "'rating' must be text or a number, got true"),
        (_RECORD.replace("1", "[1]"), "'user' must be text or a number, got a list"),
    ],
)
@pytest.mark.parametrize(("above", "line"), [("", 2), ("\n" + _RECORD + " \n", 5)])
def test_bad_values_in_json_lines(tmp_path, above, line, row, why):
    content = f"{_RECORD}{above}{row}\n"
    assert _message(tmp_path / "r.jsonl", content) == f", line {line}: {why}"


def test_unknown_columns(tmp_path):
    expected = ": there is no column 'item'; the columns are user, movie; say by --item_column"
    expected += " which one is meant"
    assert _message(tmp_path / "r.csv", "user,movie\na,b\n") == expected
    expected = ", line 1: there is no column 'when'; the columns are user, item, rating"
    expected += "; say by --time_column which one is meant"
    assert _message(tmp_path / "r.jsonl", _RECORD, time_column="when") == expected


def test_columns_of_one_name_are_told_before_the_file_is_read(tmp_path):
    with pytest.raises(UserError, match="must be different ones, got who, who, rating, time"):
        read_ratings(tmp_path / "absent.csv", user_column="who", item_column="who")
    assert (
        _message(tmp_path / "r.csv", "item,user,rating,item\n") == ": two columns are called 'item'"
    )


def test_too_few_ratings(tmp_path):
    content = "user,item,rating\na,x,3\na,y,3\na,y,4\nb,x,3\n"
    message = _message(tmp_path / "r.csv", content, min_ratings=3)
    assert message == ": no user has min_ratings=3 ratings; the most that one has is 2"
    with pytest.raises(UserError, match="min_ratings must be a whole number >= 1, got 0"):
        read_ratings(tmp_path / "r.csv", min_ratings=0)

"""Tests that a bad file of ratings is refused in one line that names the file and the row."""

from __future__ import annotations

import pytest

from fedpersonal.data.ratings import read_ratings
from fedpersonal.errors import UserError

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

"""Documents of small files and of real ones: whose, with which labels, and what is left out."""

from __future__ import annotations

import json

import pytest

from fedpersonal.data.documents import read_documents
from fedpersonal.errors import UserError


def _written(documents) -> dict[str, list[tuple[str, str]]]:
    pairs = list(zip(documents.texts, documents.label_names[documents.labels]))
    bounds = zip(documents.offsets, documents.offsets[1:])
    return {who: pairs[a:b] for who, (a, b) in zip(documents.client_ids, bounds)}


def _write(path, rows, label="context"):
    """Writes (user, label, time) rows, each with its number as its text."""
    lines = (
        json.dumps({"user": user, label: value, "time": time, "text": f"text {i}"})
        for i, (user, value, time) in enumerate(rows)
    )
    path.write_text("\n".join(lines))
    return path


# By label: sea 4, art and zoo 3 each, rare 1.
_ROWS = [
    ("bo", "zoo", 9),
    ("bo", "sea", 10),
    ("bo", "rare", 3),
    ("al", "sea", 2),
    ("al", "sea", 1),
    ("al", "art", 2),
    ("cy", "art", 1),
    ("cy", "zoo", 2),
    ("cy", "zoo", 3),
    ("cy", "sea", 4),
    ("di", "art", 1),
]


def test_frequent_labels_and_users_with_enough_of_them(tmp_path):
    documents = read_documents(_write(tmp_path / "mine.jsonl", _ROWS), num_labels=2, min_texts=2)
    # Equally frequent are art and zoo; as often as al's 2 come text 3 and text 5, in this order.
    assert documents.label_names.tolist() == ["sea", "art"]
    assert _written(documents) == {
        "al": [("text 4", "sea"), ("text 3", "sea"), ("text 5", "art")],
        "cy": [("text 6", "art"), ("text 9", "sea")],
    }
    assert documents.name == "mine"
    assert documents.report == {
        "rows of other labels than the 2 most frequent": 4,
        "users with fewer than 2 texts": 2,
        "texts of these users": 2,
    }


def test_times_are_numbers_and_users_may_have_too_many_texts(tmp_path):
    path = _write(tmp_path / "mine.jsonl", _ROWS)
    documents = read_documents(path, num_labels=3, min_texts=2, max_texts=3)
    assert _written(documents) == {
        "al": [("text 4", "sea"), ("text 3", "sea"), ("text 5", "art")],
        "bo": [("text 0", "zoo"), ("text 1", "sea")],
    }
    assert documents.report == {
        "rows of other labels than the 3 most frequent": 1,
        "users with fewer than 2 texts": 1,
        "texts of these users": 1,
        "users with more than 3 texts": 1,
        "texts of those users": 4,
    }
    untimed = read_documents(path, num_labels=3, min_texts=2, max_texts=3, time_column=None)
    assert [text for text, _ in _written(untimed)["al"]] == ["text 3", "text 4", "text 5"]


def test_more_labels_than_there_are_are_all_of_them(tmp_path):
    path = _write(tmp_path / "mine.jsonl", _ROWS)
    documents = read_documents(path, num_labels=100, min_texts=1)
    assert documents.label_names.tolist() == ["sea", "art", "zoo", "rare"]
    assert (documents.texts.size, documents.report) == (len(_ROWS), {})
    assert documents.describe()["num_labels"] == 4


def test_binary_labels(tmp_path):
    values = ["0", 1, "1.0", 0.0, "True", "false", " FALSE ", "2", "yes", "", None]
    rows = [("al", value, time) for time, value in enumerate(values)]
    path = _write(tmp_path / "t.jsonl", rows, label="clicked")
    documents = read_documents(path, label_column="clicked", num_labels=None, min_texts=1)
    assert documents.is_binary
    assert documents.labels.tolist() == [0, 1, 1, 0, 1, 0, 0]
    assert documents.report == {
        "rows with an empty 'clicked'": 2,
        "rows with a label other than 0 and 1": 2,
    }


def test_what_is_left_out_is_counted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(
        b"user,text,context,time\n"
        b"al,first,x,1\n"
        b"al,caf\xe9,x,2\n"
        b"al,too,many,3,values\n"
        b",nobody's,x,4\n"
        b"al, ,x,5\n"
        b"al,unlabelled,,6\n"
        b"al,when?,x,yesterday\n"
        b"al,last,y,7\n"
    )
    documents = read_documents(path, num_labels=2, min_texts=2)
    assert _written(documents) == {"al": [("first", "x"), ("last", "y")]}
    assert documents.report == {
        "lines left out: not UTF-8 (the first: line 3)": 1,
        "lines left out: more values than columns": 1,
        "rows with an empty 'user'": 1,
        "rows with an empty 'text'": 1,
        "rows with an empty 'context'": 1,
        "rows with an unreadable 'time'": 1,
    }


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            "user,text\na,b\n",
            {},
            ": there is no column 'context'; the columns are user, text; say by --label_column",
        ),
        ("user,text,context\na,b,\n", {}, ": no row can be used, .* line 2: 1 row with an empty"),
        ("user,text,context\na,b,x\na,c,x\n", {}, ": all rows have the label 'x'; at least 2 are"),
        (
            "user,text,context\na,b,x\na,c,y\n",
            {"num_labels": 2},
            ": no user has min_texts=15 texts of these labels; the most that one has is 2$",
        ),
        (
            "user,text,context\na,b,x\na,c,y\n",
            {"num_labels": 2, "min_texts": 1, "max_texts": 1},
            ": no user has min_texts=1 to max_texts=1 texts of .* one has is 2$",
        ),
        (
            "user,text,context\na,b,x\na,c,y\n",
            {"num_labels": None},
            ": without num_labels the labels must be 0 or 1, got such as 'x', 'y'$",
        ),
    ],
)
def test_a_file_of_no_use_is_refused_in_one_line(tmp_path, content, options, message):
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_documents(path, **options)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_labels": 1}, "num_labels must be a whole number >= 2, got 1"),
        ({"min_texts": 0}, "min_texts must be a whole number >= 1, got 0"),
        ({"max_texts": 14}, "max_texts must be a whole number >= 15, got 14"),
        ({"label_column": "user"}, "must be different ones, got user, text, user, time"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        read_documents(tmp_path / "absent.csv", **options)


def test_reddit_comments(real_data):
    documents = read_documents(real_data("reddit_comments.jsonl.gz"))
    assert (documents.num_clients, documents.texts.size, documents.num_labels) == (1770, 34826, 100)
    assert documents.label_names[0] == "AskReddit"
    left_out = documents.report
    rows = ("rows of other labels than the 100 most frequent", "texts of these users")
    assert documents.texts.size + sum(left_out[what] for what in rows) == 203_247
    assert documents.num_clients + left_out["users with fewer than 15 texts"] == 8320

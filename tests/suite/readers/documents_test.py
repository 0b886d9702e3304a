"""Labelled texts: tables, films as texts, and Reddit."""

from __future__ import annotations

import gzip
import importlib.util
import json

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers import documents as films
from fedpersonal.suite.readers.documents import load_reddit, read_documents
from fedpersonal.suite.readers.movielens import load_movielens_100k


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


def test_reddit_comments(real_data):
    documents = read_documents(real_data("reddit_comments.jsonl.gz"))
    assert (documents.num_clients, documents.texts.size, documents.num_labels) == (1770, 34826, 100)
    assert documents.label_names[0] == "AskReddit"
    left_out = documents.report
    rows = ("rows of other labels than the 100 most frequent", "texts of these users")
    assert documents.texts.size + sum(left_out[what] for what in rows) == 203_247
    assert documents.num_clients + left_out["users with fewer than 15 texts"] == 8320


_needs_recbole = pytest.mark.skipif(
    importlib.util.find_spec("recbole") is None, reason="needs the package recbole"
)
_RATINGS = "UserID,MovieID,Rating\n2,30,4\n10,7,5\n2,7,3.5\n3,30,1\n10,8,2\n"
_MOVIES = "7::Café: the Film (1995)::Comedy|Children's\n30::Sea (1999)::Drama\n"


def write(folder, movies=_MOVIES, encoding="utf-8"):
    folder.mkdir(exist_ok=True)
    (folder / "ratings.csv.gz").write_bytes(gzip.compress(_RATINGS.encode()))
    (folder / "movies.dat").write_bytes(movies.encode(encoding))


@pytest.mark.parametrize("folder", ["", "ml-1m"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_texts_of_ratings(tmp_path, folder, encoding):
    write(tmp_path / folder, encoding=encoding)
    found = films.load_films_1m(tmp_path, min_texts=1)
    assert found.name == "movielens-1m-films" and found.is_binary
    assert found.client_ids.tolist() == ["2", "3", "10"] and found.offsets.tolist() == [0, 2, 3, 4]
    cafe, sea = "Café: the Film (1995) Comedy Children's", "Sea (1999) Drama"
    assert found.texts.tolist() == [sea, cafe, sea, cafe]
    # From 4 stars on a film is liked.
    assert found.labels.tolist() == [1, 0, 0, 1]
    assert found.report == {"ratings of films without a text": 1}
    again = films.load_films_1m(tmp_path / folder / "movies.dat", min_texts=1)
    assert again.fingerprint() == found.fingerprint()


def test_users_with_few_or_many_are_left_out(tmp_path):
    write(tmp_path)
    assert films.load_films_1m(tmp_path, min_texts=2).client_ids.tolist() == ["2"]
    assert films.load_films_1m(tmp_path, min_texts=1, max_texts=1).num_clients == 2


def test_bad_data_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"MovieLens-1M is not in .*ml-1m.movies\.dat$"):
        films.load_films_1m(tmp_path)
    write(tmp_path, _MOVIES + "31::Sea\n")
    with pytest.raises(UserError, match=r"movies\.dat, line 3: MovieID::Title::Genres expected"):
        films.load_films_1m(tmp_path)
    (tmp_path / "ratings.csv.gz").unlink()
    write(tmp_path)
    (tmp_path / "ratings.csv.gz").unlink()
    with pytest.raises(UserError, match=r"there is no .*ratings\.dat"):
        films.load_films_1m(tmp_path)


@_needs_recbole
def test_films_of_movielens_100k():
    found, ratings = films.load_films_100k(), load_movielens_100k()
    assert (found.texts.size, found.num_clients, found.report) == (100_000, 943, {})
    # The published counts of 4 and 5 stars.
    assert found.labels.sum() == 34174 + 21201
    user = np.flatnonzero(found.client_ids == "196")[0]
    own = slice(*found.offsets[user : user + 2])
    rated = ratings.user_ids[ratings.users] == "196"
    assert found.labels[own].tolist() == (ratings.ratings[rated] >= 4).tolist()
    place = np.flatnonzero(ratings.item_ids[ratings.items[rated]] == "242")
    assert found.texts[own][place].tolist() == ["Kolya 1996 Comedy"]


def test_films_of_movielens_1m(real_data):
    found = films.load_films_1m(real_data("ml-1m").parent)
    assert (found.texts.size, found.num_clients, found.report) == (1_000_209, 6040, {})
    assert "Misérables, Les (1995) Drama Musical" in set(found.texts)


# Authors, subreddits and bodies.
_POSTS = [
    ("bo", "zoo", "late in the alphabet"),
    ("al", "art", "caf\u00e9"),
    ("[deleted]", "zoo", "nobody's"),
    ("bo", "sea", "rare"),
    ("al", "zoo", " \n"),
    ("al", "zoo", "second"),
    ("bo", "art", "last"),
    ("cy", "art", "alone"),
]


@pytest.fixture(name="fake_reddit")
def _fake_reddit(fake_tfds):
    def fake(folder, posts=_POSTS):
        names = ("author", "subreddit", "body")
        examples = [
            {name: np.array(value.encode(), object) for name, value in zip(names, post)}
            for post in posts
        ]
        fake_tfds("reddit", examples, folder)

    return fake


def test_posts_keep_their_order(tmp_path, fake_reddit):
    fake_reddit(tmp_path)
    documents = load_reddit(num_labels=2, min_texts=2)
    assert documents.label_names.tolist() == ["art", "zoo"]
    assert documents.client_ids.tolist() == ["al", "bo"]
    assert documents.offsets.tolist() == [0, 2, 4]
    assert documents.texts.tolist() == ["caf\u00e9", "second", "late in the alphabet", "last"]
    assert documents.labels.tolist() == [0, 1, 1, 0]
    assert documents.report == {
        "posts of deleted users": 1,
        "posts without text": 1,
        "rows of other labels than the 2 most frequent": 1,
        "users with fewer than 2 texts": 1,
        "texts of these users": 1,
    }


def test_posts_with_a_nul_are_left_out(tmp_path, fake_reddit):
    spoiled = [("x\0anna", "zoo", "one"), ("x\0bert", "zoo", "two"), ("bo", "zoo", "th\0ree")]
    fake_reddit(tmp_path, posts=[*_POSTS, *spoiled])
    documents = load_reddit(num_labels=2, min_texts=1)
    assert documents.client_ids.tolist() == ["al", "bo", "cy"]
    assert documents.report["posts with a NUL character"] == 3


def test_too_little_is_refused(tmp_path, fake_reddit):
    fake_reddit(tmp_path)
    with pytest.raises(UserError, match="reddit: no user has min_texts=150 to max_texts=500"):
        load_reddit()

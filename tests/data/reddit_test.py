"""Reddit through a stand-in of TensorFlow Datasets."""

from __future__ import annotations

import sys
import urllib.error

import numpy as np
import pytest

from fedpersonal.data.documents import load_reddit
from fedpersonal.errors import UserError

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
    def fake(folder, failure=None, posts=_POSTS):
        names = ("author", "subreddit", "body")
        examples = [
            {name: np.array(value.encode(), object) for name, value in zip(names, post)}
            for post in posts
        ]
        fake_tfds("reddit", examples, folder, failure)

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
    with pytest.raises(UserError, match="min_texts must be a whole number >= 1, got 0"):
        load_reddit(min_texts=0)


def test_without_data_is_refused(tmp_path, monkeypatch, fake_reddit):
    fake_reddit(tmp_path, OSError("disk\nfull"))
    with pytest.raises(UserError, match=r"cannot prepare Reddit \(disk\): read an own table"):
        load_reddit()

    def unreachable(request, timeout):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    fake_reddit(tmp_path / "absent")
    with pytest.raises(UserError, match=r"tldr-17.zip.* cannot be reached \(no network\): read"):
        load_reddit()
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match="tensorflow_datasets is not installed: .* own table"):
        load_reddit()

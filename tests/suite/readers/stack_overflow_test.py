"""Clients of TFF's Stack Overflow data, on TFF's own small stand-in of it."""

from __future__ import annotations

import os

import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers import stack_overflow
from fedpersonal.suite.readers.stack_overflow import (
    StackOverflowClients,
    find_database,
    load_stack_overflow,
)
from fedpersonal.suite.readers.vocabulary import Vocabulary

tff = pytest.importorskip("tensorflow_federated")

_TFF = tff.simulation.datasets.stackoverflow
_OPTIONS = {"vocab_size": 20, "num_oov_buckets": 4}


@pytest.fixture(scope="module")
def client_data():
    return _TFF.get_synthetic()


def _clients(client_data, **options):
    vocabulary = Vocabulary(["edit", ":", "the", "is", "."], 1)
    options = {"name": "n", "sequence_length": 6, **options}
    return StackOverflowClients(client_data, vocabulary, **options)


def _sentences(corpus):
    return [
        " ".join(corpus.lexicon[corpus.words[start:end]])
        for start, end in zip(corpus.sentence_offsets, corpus.sentence_offsets[1:])
    ]


def test_examples_of_some_clients(client_data):
    clients = _clients(client_data)
    assert clients.num_clients == 3
    assert list(clients.client_ids) == ["synthetic_1", "synthetic_2", "synthetic_3"]
    dataset = clients.subset([2, 1])
    assert list(dataset.client_ids) == ["synthetic_3", "synthetic_2"]
    assert dataset.counts.tolist() == [2, 3]
    # "edit :" and "the spec is available here .", of which three words are unknown.
    assert dataset.client(0)[0]["token"].tolist() == [[1, 3, 4, 2, 0, 0], [1, 5, 8, 6, 8, 8]]
    assert dataset.client(0)[1].tolist() == [[3, 4, 2, 0, 0, 0], [5, 8, 6, 8, 8, 7]]
    assert clients.subset([]).num_examples == 0
    with pytest.raises(UserError, match="no client has the index 3"):
        clients.subset([3])


def test_sentences_are_by_date_and_the_first_are_kept(client_data):
    corpus = _clients(client_data).corpus([0])
    # The one of 2010 comes first in the data; two of 2008 are equal.
    first, second, third = _sentences(corpus)
    assert first == "css3 does finally define the"
    assert second == "which is exactly how you'd want it to work ."
    assert third.startswith("if you're using sql 2005 or better")
    cut = _clients(client_data, max_sentences=2).corpus([0, 2])
    assert _sentences(cut) == [first, second, "edit :", "the spec is available here ."]
    assert cut.report == {"sentences after a user's first 2": 1}
    assert corpus.report == {}
    stored = _clients(client_data, max_sentences=2, kept_sentences="first_stored").corpus([0])
    assert _sentences(stored) == [first, third]
    with pytest.raises(ValueError, match="kept_sentences must be one of"):
        _clients(client_data, kept_sentences="last")


def test_wrong_options_are_refused(monkeypatch):
    monkeypatch.setattr(stack_overflow, "check_reachable", lambda *_: pytest.fail("too late"))
    for name in ("vocab_size", "num_oov_buckets", "sequence_length", "max_sentences"):
        with pytest.raises(UserError, match=f"{name}.*0"):
            load_stack_overflow(**{**_OPTIONS, name: 0})


@pytest.fixture
def downloads(client_data, monkeypatch):
    """Stands in for TFF's download, which writes to the database's final name as it goes."""
    folders = []

    def load_data(cache_dir):
        path = os.path.join(cache_dir, "stackoverflow.sqlite")
        if not os.path.exists(path):
            folders.append(cache_dir)
            with open(path, "w") as file:
                if len(folders) == 1:
                    file.write("half")
                    raise OSError("connection\nlost")
        return client_data, client_data, client_data

    def load_word_counts(cache_dir, vocab_size):
        return dict(list(_TFF.get_synthetic_word_counts().items())[:vocab_size])

    monkeypatch.setattr(_TFF, "load_data", load_data)
    monkeypatch.setattr(_TFF, "load_word_counts", load_word_counts)
    monkeypatch.setattr(stack_overflow, "check_reachable", lambda *_: None)
    return folders


def test_a_broken_download_leaves_nothing_behind(tmp_path, downloads):
    folder = tmp_path / "new"
    with pytest.raises(UserError, match=r"\(connection\): unpack https.*new/stackoverflow.sqlite"):
        load_stack_overflow(**_OPTIONS, cache_dir=folder)
    assert os.listdir(folder) == []
    for _ in range(2):
        parts = load_stack_overflow(**_OPTIONS, cache_dir=folder)
    assert len(downloads) == 2
    assert os.listdir(folder) == ["stackoverflow.sqlite"]
    assert list(parts.vocabulary.words[:3]) == [".", "is", "a"]
    assert parts.vocabulary.size == 27
    for part in (parts.train, parts.validation, parts.test):
        assert part.subset([1]).labels.shape == (3, 20)
    assert parts.test.name == "stack_overflow_test"
    users = parts.train.num_clients
    assert parts.summary() == f"stack_overflow: 20 known words of {users} users"
    sizes = {"num_known_words": 20, "num_users": users}
    assert parts.describe() == {"dataset": "stack_overflow", **sizes}
    fewer = load_stack_overflow(**{**_OPTIONS, "vocab_size": 19}, cache_dir=folder)
    assert parts.fingerprint() != fewer.fingerprint()
    with pytest.raises(UserError, match="vocab_size=99 is more than the 60 words there are"):
        load_stack_overflow(vocab_size=99, num_oov_buckets=4, cache_dir=folder)


def test_a_damaged_database_is_said_so(tmp_path):
    (tmp_path / "stackoverflow.sqlite").write_bytes(b"SQLite format 3\0" + bytes(500))
    with pytest.raises(UserError, match="Stack Overflow cannot be loaded .*stackoverflow.sqlite"):
        find_database(tmp_path)
    os.remove(tmp_path / "stackoverflow.sqlite")
    os.mkfifo(tmp_path / "stackoverflow.sqlite")
    with pytest.raises(UserError, match="stackoverflow.sqlite: cannot be read: it is not a regul"):
        load_stack_overflow(**_OPTIONS, cache_dir=tmp_path)

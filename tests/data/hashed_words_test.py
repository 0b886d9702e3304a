"""Bags of hashed words and pairs, against what the docstring says."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from fedpersonal.data.encoders import HashedWords
from fedpersonal.errors import UserError


def bucket(text, num_buckets=1000):
    return 1 + zlib.crc32(text.encode("utf-8")) % num_buckets


def test_words_then_pairs_each_once_in_lower_case():
    vocabulary = HashedWords(1000)
    assert vocabulary.size == 1001
    ids, counts = vocabulary.encode(["The sea, THE Sea!", "café_7", "…", "", "a"])
    assert ids.dtype == counts.dtype == np.int32
    expected = [["the", "sea", "the sea", "sea the"], ["café_7"], [], [], ["a"]]
    assert counts.tolist() == [4, 1, 0, 0, 1]
    for row, words in zip(ids, expected):
        assert row.tolist() == [*map(bucket, words), *[0] * (4 - len(words))]


def test_whole_texts_are_read():
    text = " ".join(f"w{i}" for i in range(3000))
    ids, counts = HashedWords(10**6).encode(np.array([text], object))
    assert counts.tolist() == [2 * 3000 - 1] and ids.shape == (1, 5999)
    assert ids[0, -1] == bucket("w2998 w2999", 10**6)


def test_equal_texts_are_equal_rows_and_buckets_are_shared():
    ids, counts = HashedWords(2).encode(["b a", "c", "b a"])
    assert counts.tolist() == [3, 1, 3]
    assert ids[0].tolist() == ids[2].tolist() == [bucket(t, 2) for t in ("b", "a", "b a")]


@pytest.mark.parametrize("texts", [[], [""]])
def test_without_words_there_is_padding(texts):
    ids, counts = HashedWords(5).encode(texts)
    assert ids.tolist() == [[0]] * len(texts) and counts.tolist() == [0] * len(texts)


def test_a_lone_surrogate_is_no_word():
    ids, counts = HashedWords(1000).encode(["a\ud800b"])
    assert ids.tolist() == [[bucket("a"), bucket("b"), bucket("a b")]] and counts.tolist() == [3]


def test_no_buckets_are_refused():
    with pytest.raises(UserError, match="num_buckets must be a whole number >= 1, got 0"):
        HashedWords(0)

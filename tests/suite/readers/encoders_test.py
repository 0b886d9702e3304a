"""Encoders: characters, and bags of hashed words."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from fedpersonal.suite.readers.encoders import CharacterVocabulary, HashedWords, build_characters


def test_the_most_frequent_characters_in_lower_case_ties_by_code_point():
    texts = ["Bb\U0001f600", "", "aA\U0001f600", "c", "é", "b"]
    assert build_characters(texts).characters == "ba\U0001f600cé"
    assert build_characters(np.array(texts, object), num_characters=2).characters == "ba"
    assert build_characters([]).characters == ""


def test_texts_are_lower_cased_cut_and_padded():
    vocabulary = CharacterVocabulary("ba\U0001f600")
    assert vocabulary.size == 5
    encoded = vocabulary.encode(["AB", "", "\U0001f600?\ud800a", "bbbbb", "\0"], length=4)
    assert encoded.dtype == np.int32
    assert encoded.tolist() == [
        [3, 2, 0, 0],
        [1, 0, 0, 0],
        [4, 1, 1, 3],
        [2, 2, 2, 2],
        [1, 0, 0, 0],
    ]
    assert vocabulary.encode([], length=4).shape == (0, 4)
    assert vocabulary.encode(["", "x"], length=1).tolist() == [[1], [1]]
    assert CharacterVocabulary("").encode(["ab"], length=3).tolist() == [[1, 1, 0]]


def test_lower_case_may_be_longer():
    """The dotted capital I becomes an i and a combining dot."""
    assert CharacterVocabulary("ix").encode(["\u0130x"], length=3).tolist() == [[2, 1, 3]]
    assert CharacterVocabulary("ix").encode(["\u0130x"], length=2).tolist() == [[2, 1]]


def test_as_one_character_at_a_time():
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(32, 400, n))) for n in rng.integers(0, 30, 200)]
    vocabulary = build_characters(texts, num_characters=50)
    ids = {c: i for i, c in enumerate(vocabulary.characters, start=2)}
    for text, encoded in zip(texts, vocabulary.encode(texts, length=20)):
        expected = [ids.get(c, 1) for c in text.lower()[:20]] or [1]
        assert encoded.tolist() == expected + [0] * (20 - len(expected))


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

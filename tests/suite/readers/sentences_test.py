"""Sentences of users: tables, their cache, and how texts become sentences."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers import sentences
from fedpersonal.suite.readers.sentences import (
    TextCorpus,
    count_words,
    read_text,
    split_sentences,
    split_words,
)

# a: "x y", "" and "z"; b: none; c: "y y y".
FIELDS = {
    "name": "made up",
    "client_ids": ["a", "b", "c"],
    "client_offsets": [0, 3, 3, 4],
    "sentence_offsets": [0, 2, 2, 3, 6],
    "words": [0, 1, 2, 1, 1, 1],
    "lexicon": ["x", "y", "z"],
    "report": {"lost": 1},
}


def _sentences(corpus) -> dict[str, list[str]]:
    """Each client's sentences as text."""
    written = [
        " ".join(corpus.lexicon[corpus.words[start:end]])
        for start, end in zip(corpus.sentence_offsets, corpus.sentence_offsets[1:])
    ]
    bounds = zip(corpus.client_offsets, corpus.client_offsets[1:])
    return {who: written[a:b] for who, (a, b) in zip(corpus.client_ids, bounds)}


@pytest.mark.parametrize("indices", [[], [2, 0], [1], np.array([0, 1, 2])])
def test_a_subset_has_these_clients_sentences_in_this_order(indices):
    whole = _sentences(TextCorpus(**FIELDS))
    assert whole == {"a": ["x y", "", "z"], "b": [], "c": ["y y y"]}
    subset = TextCorpus(**FIELDS).subset(indices)
    assert list(_sentences(subset).items()) == [list(whole.items())[i] for i in indices]
    assert subset.report == {"lost": 1}
    types = {name: getattr(subset, name).dtype for name in ("words", "client_offsets")}
    assert types == {"words": np.int32, "client_offsets": np.int64}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sentence_offsets": [0, 2, 1, 3, 6]}, "sentence_offsets must start at 0"),
        ({"sentence_offsets": []}, "sentence_offsets must start at 0"),
        ({"words": [0, 1]}, r"words must have shape \(6,\)"),
        ({"words": [0, 1, 2, 3, 1, 1]}, r"words must be in \[0, 3\)"),
        ({"words": [0, 1, -1, 0, 1, 1]}, r"words must be in \[0, 3\)"),
        ({"client_offsets": [0, 3, 3, 5]}, "has 4 rows; the offsets end at 5"),
        ({"client_ids": ["a", "b", "a"]}, "client_ids must be distinct"),
    ],
)
def test_fields_that_disagree_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        TextCorpus(**{**FIELDS, **change})


_RECORDS = [
    {"user": "bo", "time": "2020-01-02T10:00", "text": "Late. Later!"},
    {"user": "al", "time": "2021-01-01", "text": 'Second, with "quotes"\nand a break'},
    {"user": "bo", "time": "2020-01-02T09:59:59.5", "text": "Early"},
    {"user": "al", "time": "2020-12-31", "text": "First"},
    {"user": "cy", "time": "2020-12-31", "text": "only this"},
]
_READ = {"al": ["first", 'second , with " quotes "', "and a break"]}
_READ["bo"] = ["early", "late .", "later !"]


def _write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_users_sentences_are_in_the_order_of_time(tmp_path):
    corpus = read_text(_write(tmp_path / "mine.jsonl", _RECORDS))
    assert _sentences(corpus) == _READ
    assert corpus.name == "mine"
    # What only a user left out has written is not in the lexicon.
    assert list(corpus.lexicon) == sorted({w for s in _READ.values() for t in s for w in t.split()})
    assert corpus.report == {"users with fewer than 2 sentences": 1, "sentences of these users": 1}


def test_numbers_order_as_numbers_and_equal_times_as_rows(tmp_path):
    rows = [(10, "ten"), (9, "nine"), (10, "and ten"), (1.5e9, "last")]
    records = [{"who": "x", "said": text, "when": time} for time, text in rows]
    path = _write(tmp_path / "t.jsonl", records)
    columns = dict(user_column="who", text_column="said")
    timed = read_text(path, **columns, time_column="when")
    assert _sentences(timed) == {"x": ["nine", "ten", "and ten", "last"]}
    for options in ({}, {"time_column": None}):
        untimed = read_text(path, **columns, **options)
        assert _sentences(untimed) == {"x": ["ten", "nine", "and ten", "last"]}
        assert untimed.report == {}


def test_users_with_exactly_as_many_sentences_stay(tmp_path):
    path = _write(tmp_path / "t.jsonl", _RECORDS)
    assert list(_sentences(read_text(path, min_sentences=3))) == ["al", "bo"]
    one = read_text(path, min_sentences=1, max_sentences=1)
    assert _sentences(one) == {"al": ["first"], "bo": ["early"], "cy": ["only this"]}
    with pytest.raises(UserError, match="no user has min_sentences=4 .* one has is 3"):
        read_text(path, min_sentences=4)


def test_kept_are_the_earliest_or_the_first_in_the_table(tmp_path):
    rows = [("al", 5, "e. f."), ("bo", 9, "z"), ("al", 1, "a. b."), ("al", 3, "c"), ("bo", 8, "y")]
    records = [dict(zip(("user", "time", "text"), row)) for row in rows]
    path = _write(tmp_path / "kept.jsonl", records)
    kept = {
        which: _sentences(read_text(path, max_sentences=3, kept_sentences=which))
        for which in ("earliest", "first_stored")
    }
    assert kept["earliest"] == {"al": ["a .", "b .", "c"], "bo": ["y", "z"]}
    assert kept["first_stored"] == {"al": ["a .", "e .", "f ."], "bo": ["y", "z"]}
    # Kept corpora are not mistaken for each other.
    cached = [
        read_text(path, max_sentences=3, kept_sentences=which, cache_dir=tmp_path) for which in kept
    ]
    assert [_sentences(corpus) for corpus in cached] == list(kept.values())
    report = {"sentences after a user's first 3": 2}
    assert [corpus.report for corpus in cached] == [report, report]
    with pytest.raises(ValueError, match="kept_sentences must be one of"):
        read_text(path, kept_sentences="last")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('user,text\n\na,""\n,b\n', r": no row .* line 3: 1 row with an empty 'user', 1"),
        ("user,text\na,b\nc,d\n", ": no user has min_sentences=2 .* one has is 1$"),
    ],
)
def test_a_file_of_no_use_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_text(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_a_time_column_of_ones_own_must_be_there(tmp_path):
    path = _write(tmp_path / "t.jsonl", _RECORDS)
    with pytest.raises(UserError, match="no column 'when'; the columns are user, time, text"):
        read_text(path, time_column="when")


_FIELDS = ("client_ids", "client_offsets", "sentence_offsets", "words", "lexicon")


def _write_cache(path, *texts):
    records = [{"user": "ünì", "text": text} for text in ("Über. 東京!", *texts)]
    path.write_text("".join(json.dumps(record) + "\n" for record in [*records, {"user": "x"}]))
    return path


@pytest.fixture
def readings(monkeypatch):
    """The paths of files that were read, and not taken from the cache."""
    read, paths = sentences._read, []
    monkeypatch.setattr(
        sentences, "_read", lambda path, *options: paths.append(path) or read(path, *options)
    )
    return paths


def _check_equal(corpus, expected):
    for field in _FIELDS:
        value, other = getattr(corpus, field), getattr(expected, field)
        assert value.dtype == other.dtype
        np.testing.assert_array_equal(value, other)
    assert (corpus.name, corpus.report) == (expected.name, expected.report)


def test_read_once(tmp_path, readings):
    path = _write_cache(tmp_path / "a.jsonl")
    expected = read_text(path)
    cache = tmp_path / "new" / "cache"
    for _ in range(3):
        _check_equal(read_text(path, cache_dir=cache), expected)
    assert len(readings) == 2
    assert list(expected.report) == ["lines left out: no 'text'"]
    (file,) = cache.iterdir()
    with np.load(file, allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays.files)


def test_another_content_or_setting_is_another_corpus(tmp_path, readings, monkeypatch):
    path = _write_cache(tmp_path / "a.jsonl")

    def read(**options):
        return read_text(path, cache_dir=tmp_path / "cache", **options)

    read()
    for options in (
        {"min_sentences": 1},
        {"max_sentences": 2},
        {"time_column": None},
    ):
        before = len(readings)
        _check_equal(read(**options), read_text(path, **options))
        read(**options)
        assert len(readings) == before + 2
    before = len(readings)
    monkeypatch.setattr(sentences, "TOKEN", "another")
    read()
    _write_cache(path, "more")
    assert "more" in read().lexicon
    assert len(readings) == before + 2


def test_a_cache_that_cannot_be_written_is_said_so(tmp_path):
    path = _write_cache(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="a.jsonl: cannot be written: "):
        read_text(path, cache_dir=path)
    with pytest.raises(UserError, match="absent.jsonl: no such file"):
        read_text(tmp_path / "absent.jsonl", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hello, World!", ["hello , world !"]),
        ("One. Two?  Three!\nFour\r\n\r\nfive", ["one .", "two ?", "three !", "four", "five"]),
        ("Version 2.5 of foo.txt", ["version 2 . 5 of foo . txt"]),
        ("don't 'quote' Jane’s rock'n'roll", ["don't ' quote ' jane's rock'n'roll"]),
        ("snake_case a-b $5", ["snake_case a - b $ 5"]),
        ("wait... what", ["wait . . .", "what"]),
        ("Cafe\u0301 ÉCLAIR 東京", ["café éclair 東京"]),
        (" \n\t ", []),
        ("", []),
    ],
)
def test_sentences_and_words(text, sentences):
    assert [" ".join(words) for words in split_words(text)] == sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        (" \n ", []),
        ("No end", ["No end"]),
        ("Well... not now. Right?", ["Well... not now.", "Right?"]),
        ("Hey, Dr. Farber. Hi!", ["Hey, Dr. Farber.", "Hi!"]),
        ("It costs 3.50 now. Really", ["It costs 3.50 now.", "Really"]),
        ("No title\nA line  with  spaces", ["No title", "A line  with  spaces"]),
        ("> Who?\n  > You.\nI can't see it.", ["I can't see it."]),
        ("It works. :)", ["It works. :)"]),
    ],
)
def test_sentences_as_they_are_written(text, sentences):
    assert split_sentences(text) == sentences


def test_words_and_marks_are_counted():
    assert count_words(["I don't know...", "", "No!"]).tolist() == [6, 0, 2]

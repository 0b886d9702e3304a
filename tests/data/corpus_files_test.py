"""Corpora of small files: whose sentences, in which order, and what is left out."""

from __future__ import annotations

import json

import pytest

from fedpersonal.data.sentences import read_text
from fedpersonal.errors import UserError


def _sentences(corpus) -> dict[str, list[str]]:
    written = [
        " ".join(corpus.lexicon[corpus.words[start:end]])
        for start, end in zip(corpus.sentence_offsets, corpus.sentence_offsets[1:])
    ]
    bounds = zip(corpus.client_offsets, corpus.client_offsets[1:])
    return {who: written[a:b] for who, (a, b) in zip(corpus.client_ids, bounds)}


_RECORDS = [
    {"user": "bo", "time": "2020-01-02T10:00", "text": "Late. Later!"},
    {"user": "al", "time": "2021-01-01", "text": 'Second, with "quotes"\nand a break'},
    {"user": "bo", "time": "2020-01-02T09:59:59.5", "text": "Early"},
    {"user": "al", "time": "2020-12-31", "text": "First"},
    {"user": "cy", "time": "2020-12-31", "text": "only this"},
]
_READ = {"al": ["first", 'second , with " quotes "', "and a break"]}
_READ["bo"] = ["early", "late .", "later !"]


def test_every_format_reads_alike(write_in_any_format):
    corpus = read_text(write_in_any_format(_RECORDS))
    assert _sentences(corpus) == _READ
    assert corpus.name == "mine"
    # What only a user left out has written is not in the lexicon.
    assert list(corpus.lexicon) == sorted({w for s in _READ.values() for t in s for w in t.split()})
    assert corpus.report == {"users with fewer than 2 sentences": 1, "sentences of these users": 1}


def _write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


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


def test_what_is_left_out_is_counted(tmp_path):
    def line(user, text, time="2020-01-01"):
        return json.dumps({"user": user, "text": text, "time": time}).encode()

    lines = [
        b"{broken",
        b'{"user": "al", "text": ' + b"9" * 5000 + b"}",
        line("al", "One. Two. Three. Four. Five."),
        b'{"user": "al", "text": "caf\xe9", "time": "2020-01-01"}',
        line("al", "lone \ud800 surrogate"),
        line("al", "  "),
        line("al", None),
        line("", "nobody"),
        line("al", "when?", "yesterday"),
        line("bo", "single"),
        line("cy", ""),
        line("di", "a\nb\nc"),
        b'{"user": "al"}',
        line("al", ["no", "text"]),
        b"[1]",
    ]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join(lines))
    corpus = read_text(path, max_sentences=3)
    assert _sentences(corpus) == {"al": ["one .", "two .", "three ."], "di": ["a", "b", "c"]}
    assert corpus.report == {
        "lines left out: not a JSON object": 2,
        "lines left out: not UTF-8 (the first: line 4)": 2,
        "lines left out: no 'text'": 1,
        "lines left out: 'text' is not text": 1,
        "rows with an empty 'user'": 1,
        "rows with an empty 'text'": 3,
        "rows with an unreadable 'time'": 2,
        "users with fewer than 2 sentences": 1,
        "sentences of these users": 1,
        "sentences after a user's first 3": 2,
    }


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_sentences": 0}, "min_sentences must be a whole number >= 1, got 0"),
        ({"max_sentences": 1}, "max_sentences must be a whole number >= 2, got 1"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        read_text(tmp_path / "absent.csv", **options)

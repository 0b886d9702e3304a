"""Utterances of small files: whose, in which contexts, and what is left out."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers.utterances import read_other_texts, read_utterances


def _write(path, rows):
    names = ("user", "context", "time", "text")
    path.write_text("\n".join(json.dumps(dict(zip(names, row))) for row in rows))
    return path


def _said(utterances) -> dict[str, list[tuple[str, str]]]:
    pairs = list(zip(utterances.texts, utterances.label_names[utterances.labels]))
    bounds = zip(utterances.offsets, utterances.offsets[1:])
    return {who: pairs[a:b] for who, (a, b) in zip(utterances.client_ids, bounds)}


# By rows: in the bay Bo has 3, Al and Cy 2 each, Di 1; on the hill Al has 2 and Di 1.
_ROWS = [
    ("Bo", "bay", "e02", "Mr. Fox came in. No. He had... a net!"),
    ("bo", "bay", "e01", "The tide is low."),
    (" Bo ", "Bay", "e02", "It is late now."),
    ("Al", "bay", "e01", "The sun is up."),
    ("Al", "bay", "e01", "It is my boat."),
    ("Al", "hill", "e01", "Up on the hill."),
    ("Al", "hill", "e01", "I see the sea."),
    ("Cy", "bay", "e03", "> Is it so?\nIt is so."),
    ("Cyrus", "bay", "e03", "And it is good."),
    ("Di", "hill", "e01", "Here I stand."),
    ("Di", "bay", "e01", "There I sat."),
    ("Al", "arch", "e01", "All is green."),
]


def test_sentences_become_utterances_of_one_client_a_name(tmp_path):
    utterances = read_utterances(_write(tmp_path / "mine.jsonl", _ROWS))
    said = _said(utterances)
    assert utterances.name == "mine"
    # The most frequent spelling, of equally frequent ones the alphabetically first.
    assert list(said) == ["Al", "Bo", "Cy", "Cyrus", "Di"]
    # "No." has two tokens, and the times are ordered as text.
    assert said["Bo"] == [
        ("The tide is low.", "bay"),
        ("Mr. Fox came in.", "bay"),
        ("He had... a net!", "bay"),
        ("It is late now.", "bay"),
    ]
    assert said["Cy"] == [("It is so.", "bay")]
    assert [context for _, context in said["Al"]] == ["bay", "bay", "hill", "hill", "arch"]
    assert utterances.label_names.tolist() == ["bay", "hill", "arch"]
    assert utterances.labels.dtype == np.int32
    assert utterances.report == {"sentences with fewer than 3 tokens": 1}


def test_most_frequent_users_of_contexts(tmp_path):
    path = _write(tmp_path / "mine.jsonl", _ROWS)
    chosen = read_utterances(path, users_per_context={"BAY": 1, "hill": 1})
    assert {who: len(texts) for who, texts in _said(chosen).items()} == {"Al": 4, "Bo": 4}
    assert chosen.report == {
        "rows of other contexts": 1,
        "rows of less frequent users": 4,
        "sentences with fewer than 3 tokens": 1,
    }
    # Of Al and "Cyrus", of two rows each once this is Cy, the alphabetically first.
    only = read_utterances(path, users_per_context={"bay": 2}, other_names={"cy": "Cyrus"})
    assert list(_said(only)) == ["Al", "Bo"]
    more = read_utterances(path, users_per_context={"bay": 3}, other_names={"cy": "Cyrus"})
    assert _said(more)["Cyrus"] == [("It is so.", "bay"), ("And it is good.", "bay")]
    everywhere = read_utterances(path, users_per_context=1)
    assert {who: len(texts) for who, texts in _said(everywhere).items()} == {"Al": 5, "Bo": 4}


def test_users_and_contexts_need_enough_until_all_have(tmp_path):
    rows = [("a", "x", 1, "One two three."), ("a", "y", 2, "One two three.")]
    rows += [("b", "y", 1, "One two three."), ("b", "z", 1, "One two three.")]
    rows += [("c", "z", i, f"One two three {i}.") for i in (10, 9, 8)]
    # x goes, then a, then y, then b with one utterance; and c stays.
    kept = read_utterances(
        _write(tmp_path / "t.jsonl", rows), min_utterances=2, min_context_utterances=2
    )
    assert _said(kept) == {"c": [(f"One two three {i}.", "z") for i in (8, 9, 10)]}
    assert kept.report == {
        "users with too few utterances": 2,
        "contexts with too few utterances": 2,
        "utterances of these": 4,
    }


def test_short_sentences_are_left_out(tmp_path):
    path = _write(tmp_path / "mine.jsonl", _ROWS)
    long = read_utterances(path, min_tokens=6)
    assert long.texts.tolist() == ["Mr. Fox came in.", "He had... a net!"]
    assert long.report == {"sentences with fewer than 6 tokens": 12}


def test_other_texts_are_those_of_everyone_else(tmp_path):
    path = _write(tmp_path / "mine.jsonl", _ROWS)
    chosen = read_utterances(path, users_per_context={"bay": 2}, other_names={"cy": "Cyrus"})
    others = read_other_texts(path, chosen.client_ids.tolist(), other_names={"cy": "Cyrus"})
    assert others.tolist() == ["It is so.", "And it is good.", "Here I stand.", "There I sat."]
    assert read_other_texts(path, ["al", "BO", "cy", "cyrus", "di"]).shape == (0,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"users_per_context": {"bay": 9}}, "asks for 9 users of 'bay', which has 5"),
        ({"users_per_context": {"inn": 1}}, "no context 'inn', only arch, bay, hill"),
        ({"min_utterances": 9}, "min_utterances=9 .* the most utterances of a user are 5"),
        ({"context_column": "place"}, "there is no column 'place'; .*; say by --context_column"),
        ({"time_column": "when"}, "there is no column 'when'"),
    ],
)
def test_a_table_of_no_use_is_refused_in_one_line(tmp_path, options, message):
    path = _write(tmp_path / "mine.jsonl", _ROWS)
    with pytest.raises(UserError, match=message) as caught:
        read_utterances(path, **options)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)

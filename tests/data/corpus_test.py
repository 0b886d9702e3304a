"""A corpus's clients, chosen and checked."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.sentences import TextCorpus
from fedpersonal.errors import UserError

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


def sentences(corpus) -> dict[str, list[str]]:
    """Each client's sentences as text."""
    written = [
        " ".join(corpus.lexicon[corpus.words[start:end]])
        for start, end in zip(corpus.sentence_offsets, corpus.sentence_offsets[1:])
    ]
    bounds = zip(corpus.client_offsets, corpus.client_offsets[1:])
    return {who: written[a:b] for who, (a, b) in zip(corpus.client_ids, bounds)}


def test_counts():
    corpus = TextCorpus(**FIELDS)
    assert (corpus.num_clients, corpus.num_sentences, corpus.words.size) == (3, 4, 6)
    assert np.diff(corpus.client_offsets).tolist() == [3, 0, 1]
    assert corpus.words.dtype == np.int32
    assert {corpus.client_offsets.dtype, corpus.sentence_offsets.dtype} == {np.dtype(np.int64)}


@pytest.mark.parametrize("indices", [[], [2, 0], [1], np.array([0, 1, 2])])
def test_a_subset_has_these_clients_sentences_in_this_order(indices):
    whole = sentences(TextCorpus(**FIELDS))
    assert whole == {"a": ["x y", "", "z"], "b": [], "c": ["y y y"]}
    subset = TextCorpus(**FIELDS).subset(indices)
    assert list(sentences(subset).items()) == [list(whole.items())[i] for i in indices]
    assert subset.report == {"lost": 1}


def test_no_client_twice_and_none_that_is_not_there():
    with pytest.raises(UserError, match="'a' is there 2 times"):
        TextCorpus(**FIELDS).subset([0, 0])
    with pytest.raises(UserError, match="no client has the index 3"):
        TextCorpus(**FIELDS).subset([3])


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

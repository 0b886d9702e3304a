"""Labelled texts, checked, and what they tell of themselves; each client's most frequent label."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers.labelled_texts import LabelledTexts, most_frequent_labels
from fedpersonal.suite.readers.utterances import Utterances

# b has written nothing.
FIELDS = {
    "name": "made up",
    "client_ids": ["a", "b", "c"],
    "offsets": [0, 4, 4, 6],
    "texts": ["one", "two", "three", "four", "five", "six"],
    "labels": [2, 1, 2, 1, 2, 2],
    "label_names": ["x", "y", "z"],
    "report": {"lost": 1},
}


def test_counts_and_types():
    documents = LabelledTexts(**FIELDS)
    assert (documents.num_clients, documents.texts.size, documents.num_labels) == (3, 6, 3)
    types = {name: getattr(documents, name).dtype for name in ("texts", "labels", "offsets")}
    assert types == {"texts": object, "labels": np.int32, "offsets": np.int64}
    assert not documents.is_binary
    labels = {"labels": [0, 1, 1, 0, 0, 0], "label_names": ["0", "1"]}
    assert LabelledTexts(**{**FIELDS, **labels}).is_binary


def test_they_tell_what_they_are():
    documents = LabelledTexts(**FIELDS)
    assert documents.summary() == "made up: 6 texts of 3 users, 3 labels; 1 lost"
    sizes = {"num_users": 3, "num_texts": 6, "num_labels": 3}
    assert documents.describe() == {"dataset": "made up", **sizes}
    utterances = Utterances(**{**FIELDS, "report": {"lost": 0}})
    assert utterances.summary() == "made up: 6 utterances of 3 users, 3 contexts"
    sizes = {"num_users": 3, "num_utterances": 6, "num_contexts": 3}
    assert utterances.describe() == {"dataset": "made up", **sizes}


def test_the_fingerprint_is_that_of_the_content():
    known = LabelledTexts(**FIELDS).fingerprint()
    assert known == LabelledTexts(**{**FIELDS, "name": "other", "report": {}}).fingerprint()
    changes = {
        "texts": ["onet", "wo", "three", "four", "five", "six"],
        "labels": [2, 1, 2, 1, 2, 1],
        "label_names": ["x", "y", "Z"],
        "client_ids": ["a", "b", "d"],
        "offsets": [0, 4, 5, 6],
    }
    others = {LabelledTexts(**{**FIELDS, k: v}).fingerprint() for k, v in changes.items()}
    assert len(others | {known}) == 6 and all(len(other) == 16 for other in others)


def test_most_frequent_labels_are_the_lowest_of_equals():
    dataset = LabelledTexts(**FIELDS).to_client_dataset()
    assert most_frequent_labels(dataset).tolist() == [1, 0, 2]
    assert most_frequent_labels(dataset.subset([])).tolist() == []
    assert most_frequent_labels(dataset.subset([1])).tolist() == [0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"client_ids": ["a", "b", "a"]}, "client_ids must be distinct, but 'a' is there 2 times"),
        ({"texts": ["one"]}, r"features\['text'\] has 1 rows; the offsets end at 6"),
        ({"texts": [["one"]] * 6}, r"texts must have one dimension, got the shape \(6, 1\)"),
        ({"labels": [0, 0, 3, 0, 0, 0]}, r"labels must be in \[0, 3\), .*, got 3"),
        ({"labels": [0, 0, 0, 0, 0, -1]}, r"labels must be in \[0, 3\), .*, got -1"),
        (
            {"label_names": ["x", "y", "x"]},
            "label_names must be distinct, but 'x' is there 2 times",
        ),
    ],
)
def test_what_does_not_fit_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        LabelledTexts(**{**FIELDS, **fields})

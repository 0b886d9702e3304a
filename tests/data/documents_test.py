"""Documents, checked and chosen, and each client's most frequent label."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.documents import Documents, most_frequent_labels
from fedpersonal.errors import UserError

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


def _written(documents) -> dict[str, list[tuple[str, str]]]:
    pairs = list(zip(documents.texts, documents.label_names[documents.labels]))
    bounds = zip(documents.offsets, documents.offsets[1:])
    return {who: pairs[a:b] for who, (a, b) in zip(documents.client_ids, bounds)}


def test_counts_and_types():
    documents = Documents(**FIELDS)
    assert (documents.num_clients, documents.num_texts, documents.num_labels) == (3, 6, 3)
    types = {name: getattr(documents, name).dtype for name in ("texts", "labels", "offsets")}
    assert types == {"texts": object, "labels": np.int32, "offsets": np.int64}
    assert not documents.is_binary
    labels = {"labels": [0, 1, 1, 0, 0, 0], "label_names": ["0", "1"]}
    assert Documents(**{**FIELDS, **labels}).is_binary


@pytest.mark.parametrize("indices", [[], [2, 0], [1], np.array([0, 1, 2])])
def test_a_subset_has_these_clients_texts_in_this_order(indices):
    whole = _written(Documents(**FIELDS))
    assert whole["c"] == [("five", "z"), ("six", "z")]
    subset = Documents(**FIELDS).subset(indices)
    assert list(_written(subset).items()) == [list(whole.items())[i] for i in indices]
    assert (subset.report, subset.num_labels) == ({"lost": 1}, 3)


def test_most_frequent_labels_are_the_lowest_of_equals():
    dataset = Documents(**FIELDS).to_client_dataset()
    assert most_frequent_labels(dataset).tolist() == [1, 0, 2]
    assert most_frequent_labels(dataset.subset([])).tolist() == []
    assert most_frequent_labels(dataset.subset([1])).tolist() == [0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"client_ids": ["a", "b", "a"]}, "client_ids must be distinct, but 'a' is there 2 times"),
        ({"offsets": [0, 4, 3, 6]}, "offsets must start at 0 and never descend"),
        ({"offsets": [0, 6]}, r"offsets \(num_clients \+ 1,\), got \(3,\) and \(2,\)"),
        ({"texts": ["one"]}, r"features\['text'\] has 1 rows, but the offsets end at 6"),
        ({"texts": [["one"]] * 6}, r"texts must have one dimension, got the shape \(6, 1\)"),
        ({"labels": [1]}, "labels has 1 rows, but the offsets end at 6"),
        ({"labels": [0, 0, 3, 0, 0, 0]}, r"labels must be in \[0, 3\), .*, got 3"),
        ({"labels": [0, 0, 0, 0, 0, -1]}, r"labels must be in \[0, 3\), .*, got -1"),
        ({"label_names": ["x", "y", "x"]}, "label_names must be distinct, but 'x' is there twice"),
    ],
)
def test_what_does_not_fit_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        Documents(**{**FIELDS, **fields})

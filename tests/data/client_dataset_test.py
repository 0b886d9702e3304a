"""Tests of `ClientDataset` against plain slices of its columns."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError


def _make(**changes) -> ClientDataset:
    """Clients a, b, c and d with 2, 0, 3 and 1 examples, labelled 0 to 5."""
    fields = dict(
        client_ids=np.array(["a", "b", "c", "d"], object),
        offsets=np.array([0, 2, 2, 5, 6]),
        features={"x": np.arange(12).reshape(6, 2)},
        labels=np.arange(6),
    )
    return ClientDataset(**{**fields, **changes})


def _labels(dataset: ClientDataset) -> dict[str, list[int]]:
    """Each client's labels, once its features are seen to go with them."""
    found = {}
    for i, name in enumerate(dataset.client_ids):
        features, labels = dataset.client(i)
        np.testing.assert_array_equal(features["x"], np.stack([2 * labels, 2 * labels + 1], 1))
        found[name] = labels.tolist()
    return found


def test_counts_and_places():
    dataset = _make()
    assert (dataset.num_clients, dataset.num_examples) == (4, 6)
    assert dataset.counts.tolist() == [2, 0, 3, 1]
    assert dataset.example_clients.tolist() == [0, 0, 2, 2, 2, 3]
    assert dataset.example_positions.tolist() == [0, 1, 0, 1, 2, 0]
    assert _labels(dataset) == {"a": [0, 1], "b": [], "c": [2, 3, 4], "d": [5]}


def test_subset_keeps_the_order_asked_for():
    dataset = _make()
    assert list(_labels(dataset.subset([3, 1, 0])).items()) == [
        ("d", [5]),
        ("b", []),
        ("a", [0, 1]),
    ]
    assert dataset.subset([]).num_clients == 0


def test_filter_examples_keeps_clients_without_examples():
    kept = _make().filter_examples(np.array([False, False, True, False, True, True]))
    assert _labels(kept) == {"a": [], "b": [], "c": [2, 4], "d": [5]}


def test_head():
    dataset = _make()
    assert _labels(dataset.head(2)) == {"a": [0, 1], "b": [], "c": [2, 3], "d": [5]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(offsets=np.array([0, 2, 6])), r"got \(4,\) and \(3,\)"),
        (dict(offsets=np.array([0.0, 2, 2, 5, 6])), "float64"),
        (dict(offsets=np.array([0, 3, 2, 5, 6])), "never descend"),
        (dict(offsets=np.array([1, 2, 2, 5, 6])), "start at 0"),
        (dict(offsets=None), r"offsets must be an array .* 'None' of type NoneType"),
        (dict(labels=[[1], [2, 3]]), "labels must have rows of one shape; pad shorter ones"),
        (dict(labels=np.array([1, "a"] * 3, object)), "labels must be .* such as '1' of type int"),
        (dict(features=[1, 2]), "features must be a mapping of names to columns, got a list"),
        (dict(features={"x": [None] * 6}), r"features\['x'\] must .* 'None' of type NoneType"),
        (dict(client_ids=np.arange(4)), "client_ids must be str, got 0 of dtype int64"),
        (dict(client_ids=[b"a", b"b", b"c", b"d"]), r"client_ids must be str, got b'a' of dtype"),
        (dict(labels=np.arange(5)), "labels has 5 rows; the offsets end at 6"),
        (dict(features={"x": np.float32(1)}), r"features\['x'\] has no rows"),
        (dict(client_ids=np.array(["a", "b", "c", "b"], object)), "'b' is there 2 times"),
        # Such as pandas' categories take for one.
        (
            dict(client_ids=["a", "x\0anna", "x\0bert", "c"]),
            r"^client_ids: 'x\\x00anna' has a NUL character$",
        ),
        (dict(client_ids=["a", "b", "\ud800", "\ud801"]), r"'\\ud800' is not Unicode text$"),
    ],
)
def test_wrong_columns_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        _make(**changes)


def test_the_fingerprint_is_that_of_the_content():
    known = _make().fingerprint()
    assert _make(client_ids=list("abcd")).client_ids.dtype == object
    assert known == _make(client_ids=list("abcd")).fingerprint()
    assert known == _make().fingerprint() == _make(features=dict(_make().features)).fingerprint()
    others = [
        _make(labels=np.arange(6)[::-1]),
        _make(labels=np.zeros(6)),
        _make(labels=np.zeros(6, int)),
        _make(offsets=np.array([0, 2, 3, 5, 6])),
        _make(client_ids=np.array(list("abce"), object)),
        _make(features={}),
        _make().subset([1, 0, 2, 3]),
    ]
    assert len({known, *(other.fingerprint() for other in others)}) == 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.client(4), "the index 4: there are 4 clients"),
        (lambda d: d.subset([0, -1]), "the index -1"),
        (lambda d: d.subset([0.5]), "float64"),
        (lambda d: d.subset([0, 0]), "'a' is there 2 times"),
        (lambda d: d.filter_examples(np.ones(5, bool)), r"bool of shape \(6,\)"),
        (lambda d: d.filter_examples(np.ones(6)), "got float64"),
        (lambda d: d.head(-1), "max_examples must be a whole number >= 0, got -1"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(UserError, match=message):
        call(_make())

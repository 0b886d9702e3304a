"""A table's rows by client."""

import numpy as np
import pandas as pd
import pytest

from fedpersonal.data.clients import clients_from_datasets, clients_from_table
from fedpersonal.errors import UserError

TABLE = pd.DataFrame(
    {"who": ["b", "a", "b", "a", "c"], "x": [1, 2, 3, 4, 5], "z": [6, 7, 8, 9, 10], "y": range(5)}
)


def from_table(table=TABLE, **changes):
    options = {"client_column": "who", "features": {"one": "x", "two": ["x", "z"]}}
    return clients_from_table(table, **{**options, "label_column": "y", **changes})


def test_rows_are_grouped_and_keep_their_order():
    dataset = from_table()
    assert list(dataset.client_ids) == ["a", "b", "c"]
    np.testing.assert_array_equal(dataset.counts, [2, 2, 1])
    features, labels = dataset.client(1)
    np.testing.assert_array_equal(features["one"], [1, 3])
    np.testing.assert_array_equal(features["two"], [[1, 6], [3, 8]])
    np.testing.assert_array_equal(labels, [0, 2])


@pytest.mark.parametrize("changes", [{"client_column": "w"}, {"features": {"one": ["x", "w"]}}])
def test_a_missing_column_is_named(changes):
    with pytest.raises(UserError, match="no column 'w'; it has .*who"):
        from_table(**changes)


def test_names_of_clients_become_text_in_the_order_of_numbers():
    dataset = from_table(TABLE.assign(who=[10, 9, 10, 9, 11]))
    assert dataset.client_ids.tolist() == ["9", "10", "11"]


def test_a_column_for_two_purposes_is_named():
    with pytest.raises(UserError, match="client_column and label_column are both 'who'"):
        from_table(label_column="who")
    with pytest.raises(UserError, match="the table has two columns called 'x'"):
        from_table(TABLE.rename(columns={"z": "x"}), features={"one": "x"})
    with pytest.raises(UserError, match=r"features\['one'\] must be an array of numbers or of str"):
        from_table(TABLE.assign(x=[1, "a", 2, 3, 4]))


def test_names_of_two_types_are_refused():
    with pytest.raises(UserError, match="'who': rows name clients by texts and by numbers"):
        from_table(TABLE.assign(who=["1", 1, "a", 2, 3]))


def test_a_row_without_client_is_named():
    with pytest.raises(UserError, match="row 3 names no client"):
        from_table(TABLE.assign(who=["b", "a", None, "a", "c"]))


def batch(*labels):
    labels = np.array(labels, np.float32)
    return {"x": {"a": labels + 1, "b": labels[:, np.newaxis]}, "y": labels}


def test_datasets_are_joined_in_their_order():
    pairs = [tuple(own.values()) for own in (batch(1, 2), batch(3))]
    clients = clients_from_datasets([[batch(5, 4), batch(6)], [], pairs])
    assert clients.client_ids.tolist() == ["client0", "client1", "client2"]
    assert clients.counts.tolist() == [3, 0, 3]
    assert clients.labels.tolist() == [5, 4, 6, 1, 2, 3]
    assert clients.features["a"].tolist() == [6, 5, 7, 2, 3, 4]
    assert clients.features["b"].shape == (6, 1)
    assert clients_from_datasets({"anna": [batch(1)]}).client_ids.tolist() == ["anna"]


@pytest.mark.parametrize(
    ("datasets", "said"),
    [
        ([[], []], "no client has a batch"),
        ([[batch(1)], [({"a": np.ones(1)}, np.ones(1))]], "not all batches have the inputs"),
        (
            [[({"a": np.ones((1, 2))}, np.ones(1)), ({"a": np.ones((1, 3))}, np.ones(1))]],
            "columns of different shapes",
        ),
    ],
)
def test_datasets_that_are_refused(datasets, said):
    with pytest.raises(UserError, match=said):
        clients_from_datasets(datasets)

"""Clients' examples, and how tables become them: each client has its own rows."""

from __future__ import annotations

import collections
import decimal
import sys
import types

import numpy as np
import pandas as pd
import pytest

from fedpersonal.data.clients import ClientDataset, clients_from_datasets, clients_from_table
from fedpersonal.errors import UserError
from fedpersonal.suite.readers.documents import DocumentFilter
from fedpersonal.suite.readers.labelled_texts import LabelledRows
from fedpersonal.suite.readers.ratings import number_ratings


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
        (dict(labels=np.ma.array([1, 2], mask=[0, 1])), "labels has 1 masked values: leave"),
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


def test_columns_of_all_kinds_become_numbers():
    """Of the same table in other types, and as other libraries hold it."""
    table = TABLE.assign(f=[0.5, 1, 2, 3, 4], b=[True, False, True, True, False])
    columns = ["x", "f", "b"]
    expected = from_table(table, features={"x": columns})
    np.testing.assert_array_equal(
        expected.features["x"], table.sort_values("who", kind="stable")[columns].astype(float)
    )
    others = {
        "nullable": table.convert_dtypes(),
        "categories": table.astype({"x": "category", "f": "category"}),
        "objects": table.astype({"x": object, "b": object}),
        "decimals": table.assign(f=table.f.map(decimal.Decimal)),
        "sparse": table.astype({"x": pd.SparseDtype(int)}),
        "index": table.set_index("who"),
        "levels": table.set_index(["who", "x"]),
        "another column twice": pd.concat([table, table[["z"]]], axis=1),
    }
    for name, other in others.items():
        made = from_table(other, features={"x": columns})
        assert made.fingerprint() == expected.fingerprint(), name
    numbered = table.set_axis(range(table.shape[1]), axis=1)
    made = from_table(numbered, client_column=0, features={"x": [1, 4, 5]}, label_column=3)
    assert made.fingerprint() == expected.fingerprint()
    lists = table.assign(l=[*table[columns].to_numpy(float)])
    assert from_table(lists, features={"x": "l"}).fingerprint() == expected.fingerprint()
    ids, order = expected.client_ids, table.sort_values("who", kind="stable")
    for given in (order[columns], order[columns].convert_dtypes(), order[columns].to_numpy()):
        made = ClientDataset(ids, expected.offsets, {"x": given}, order["y"].convert_dtypes())
        assert made.fingerprint() == expected.fingerprint()


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_tables_of_other_libraries(library):
    made = pytest.importorskip(library)
    columns = {name: TABLE[name].tolist() for name in TABLE}
    table = made.DataFrame(columns) if library == "polars" else made.table(columns)
    streamed = types.SimpleNamespace(__arrow_c_stream__=getattr(table, "__arrow_c_stream__", None))
    lazy = [table.lazy()] if library == "polars" else [table.to_reader(), streamed]
    for other in [table, *lazy]:
        assert from_table(other).fingerprint() == from_table().fingerprint()


def test_arrow_without_pyarrow_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    stream = types.SimpleNamespace(__arrow_c_stream__=None)
    with pytest.raises(UserError, match="cannot be read .pip install pyarrow, .* table of pandas"):
        from_table(stream)


HOLES = TABLE.assign(x=[1, None, 3, None, 5], y=[0, 1, None, 3, 4])


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        (TABLE, {"client_column": "w"}, "no column 'w'; it has who, x, z, y"),
        (TABLE, {"features": {"one": ["x", "w"]}, "label_column": "v"}, "no column 'v', 'w'; it"),
        (TABLE, {"label_column": "who"}, "client_column and label_column are both 'who'"),
        (
            TABLE,
            {"label_column": ["y", "z"]},
            r"label_column must be .* one column .*, not \['y', 'z",
        ),
        (
            TABLE,
            {"client_column": ["who"]},
            r"client_column must be the name of one column, not \[",
        ),
        (
            TABLE,
            {"features": ["x"]},
            "features must map inputs of the model to columns, .* be list",
        ),
        (TABLE, {"features": {"one": []}}, r"features\['one'\] names no column"),
        (TABLE, {"features": {"one": {"x", "z"}}}, r"features\['one'\] must be .* a list of names"),
        (TABLE.rename(columns={"z": "x"}), {"features": {"one": "x"}}, "two columns called 'x'"),
        (TABLE.assign(x=[1, "a", 2, 3, 4]), {}, r"\['one'\] must be an array of numbers or of str"),
        (
            TABLE.assign(x=[*"abcde"]),
            {},
            r"\['two'\] is made of texts \('x'\) and of numbers \('z'",
        ),
        (
            HOLES,
            {},
            r"in 'y' \(1 row\), 'x' \(2 rows\), first in row 2 of 5: .*subset=\['y', 'x'\]",
        ),
        (HOLES.convert_dtypes(), {}, r"missing or NaN in 'y' \(1 row\), 'x' \(2 rows\)"),
        (TABLE.assign(who=["a", None, "b", "c", "d"]), {}, r"in 'who' \(1 row\), first in row 2"),
        (
            TABLE.assign(x=pd.date_range("2020", periods=5)),
            {},
            r"holds times \(datetime64.* \.dt.ho",
        ),
        (TABLE.assign(x=[[1], [2], [3], [4], [5]]), {}, "column 'x' holds lists, which must be an"),
        (TABLE.assign(x=[[1], [2], [3], [4], [5, 6]]), {}, "must have rows of one shape"),
        (TABLE.assign(x=[[1], [2], [3], 4, [5]]), {}, "holds lists, and other values such as '4'"),
        (TABLE.assign(x=[[1], [2], [np.nan], [4], [5]]), {}, "holds lists with NaN, in 1 row:"),
        (TABLE.to_dict("list"), {}, "must be a table of pandas, Polars or Arrow, not dict"),
    ],
)
def test_tables_that_are_refused(table, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        from_table(table, **changes)
    assert "\n" not in str(caught.value)


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


NAMES = {
    "texts": ["b", "b", "b", "a", "B", "a", "ä", "10", "9"],
    "numbers": ["10", "10", "9", "10", "200", "9", "9", "31", "200"],
}
ORDER = {"texts": ["10", "9", "B", "a", "b", "ä"], "numbers": ["9", "10", "31", "200"]}
# The word that tells a row from others; letters alone, which all readers keep.
WORDS = [letter * 4 for letter in "cdefghijk"]
ODD = {"texts": ["z", "ä", "b", "9", "a", "10", "B"], "numbers": ["200", "31", "7", "9", "10"]}


def as_categories(column, kind, *, ordered=False):
    """Categories in an odd order, one of which does not occur."""
    return column.astype(pd.CategoricalDtype(ODD[kind], ordered=ordered))


FORMS = {
    "object": lambda column, _: column,
    "string": lambda column, _: column.astype("string"),
    "arrow": lambda column, _: column.astype("string[pyarrow]"),
    "category": lambda column, _: column.astype("category"),
    "odd categories": as_categories,
    "ordered categories": lambda column, kind: as_categories(column, kind, ordered=True),
    "categories of numbers": lambda column, _: column.astype(int).astype("category"),
    "int": lambda column, _: column.astype(int),
    "nullable": lambda column, _: column.astype(int).astype("Int64"),
    "objects of numbers": lambda column, _: column.astype(int).astype(object),
    "another index": lambda column, _: column.set_axis([5] * 5 + [1] * 4),
}


def of_table(names):
    table = pd.DataFrame({"who": names}).assign(word=WORDS, y=range(len(WORDS)))
    options = {"client_column": "who", "features": {"x": "word"}, "label_column": "y"}
    dataset = clients_from_table(table, **options)
    assert [WORDS[y] for y in dataset.labels] == dataset.features["x"].tolist()
    return dataset, dataset.features["x"]


def of_ratings(names):
    ratings = number_ratings(names.array, np.array(WORDS), np.ones(len(WORDS)), name="n")
    return ratings.to_client_dataset(), ratings.item_ids[ratings.items]


def of_rows(names):
    labels = pd.Categorical([str(i % 2) for i in range(len(WORDS))])
    users, times = pd.Categorical(names), np.zeros(len(WORDS))
    rows = LabelledRows("n", users, np.array(WORDS), labels, times, collections.Counter())
    found = DocumentFilter(num_labels=None, min_texts=1).documents(rows)
    return found.to_client_dataset(), found.texts


READERS = (of_table, of_ratings, of_rows)
OF_NUMBERS = {"int", "nullable", "categories of numbers", "objects of numbers"}
CASES = [(reader, form, "numbers") for reader in READERS for form in FORMS]
CASES += [(reader, form, "texts") for reader in READERS for form in FORMS if form not in OF_NUMBERS]


@pytest.mark.parametrize(("reader", "form", "kind"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_clients_have_their_own_rows_in_order(reader, form, kind):
    if form == "arrow":
        pytest.importorskip("pyarrow")
    names, order = NAMES[kind], ORDER[kind]
    dataset, words = reader(FORMS[form](pd.Series(names, dtype=object), kind))
    found = dict(zip(dataset.client_ids, np.split(words, dataset.offsets[1:-1])))
    assert list(found) == order
    for name in order:
        own = [word for word, other in zip(WORDS, names) if other == name]
        assert found[name].tolist() == own, name


@pytest.mark.parametrize("reader", READERS[:2], ids=lambda reader: reader.__name__)
@pytest.mark.parametrize("form", ["object", "string", "category"])
def test_a_row_without_a_name_is_nobodys(reader, form):
    names = pd.Series(["b", "a", None, "b", "b", "a", "a", "b", "b"], dtype=object)
    with pytest.raises(UserError, match=r"row 3 names no user|'who' \(1 row\), first in row 3"):
        reader(FORMS[form](names, "texts"))


def test_names_that_read_alike_are_refused():
    """One is a text and the other a number: two people, or one."""
    names = pd.Series(["1", 1, "2", "3", "1", 1, "2", "3", "1"], dtype=object)
    for reader in READERS[:2]:
        with pytest.raises(UserError, match="by texts and by numbers; make all texts"):
            reader(names)

"""Whoever makes clients of rows: each has its own rows, whatever names are made of.

The order of the clients is that of their names, as numbers if all of them are.
"""

from __future__ import annotations

import collections

import numpy as np
import pandas as pd
import pytest

from fedpersonal.data.clients import clients_from_table
from fedpersonal.data.documents import DocumentFilter, films_liked, read_documents
from fedpersonal.data.labelled_texts import LabelledRows
from fedpersonal.data.ratings import number_ratings, read_ratings
from fedpersonal.data.sentences import read_text
from fedpersonal.data.utterances import read_utterances
from fedpersonal.errors import UserError

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


def of_table(names, folder):
    table = pd.DataFrame({"who": names}).assign(word=WORDS, y=range(len(WORDS)))
    options = {"client_column": "who", "features": {"x": "word"}, "label_column": "y"}
    dataset = clients_from_table(table, **options)
    assert [WORDS[y] for y in dataset.labels] == dataset.features["x"].tolist()
    return dataset, dataset.features["x"]


def of_ratings(names, folder):
    ratings = number_ratings(names.array, np.array(WORDS), np.ones(len(WORDS)), name="n")
    return ratings.to_client_dataset(), ratings.item_ids[ratings.items]


def of_films(names, folder):
    ratings = number_ratings(names.array, np.array(WORDS), np.arange(9) % 2 + 3.5, name="n")
    films = films_liked(ratings, dict(zip(WORDS, WORDS)), min_texts=1, max_texts=None)
    return films.to_client_dataset(), films.texts


def of_rows(names, folder):
    labels = pd.Categorical([str(i % 2) for i in range(len(WORDS))])
    users, times = pd.Categorical(names), np.zeros(len(WORDS))
    rows = LabelledRows("n", users, np.array(WORDS), labels, times, collections.Counter())
    found = DocumentFilter(num_labels=None, min_texts=1).documents(rows)
    return found.to_client_dataset(), found.texts


def written(names, folder):
    columns = {"text": WORDS, "item": WORDS, "context": list("xyxyxyxyx"), "rating": 1}
    path = folder / "t.csv"
    pd.DataFrame({"user": names}).assign(**columns).to_csv(path, index=False)
    return path


def of_rating_file(names, folder):
    ratings = read_ratings(written(names, folder))
    return ratings.to_client_dataset(), ratings.item_ids[ratings.items]


def of_document_file(names, folder):
    found = read_documents(written(names, folder), min_texts=1)
    return found.to_client_dataset(), found.texts


def of_utterance_file(names, folder):
    found = read_utterances(written(names, folder), min_tokens=1)
    return found.to_client_dataset(), found.texts


def of_text_file(names, folder):
    corpus = read_text(written(names, folder), min_sentences=1)
    return corpus._by_client(), corpus.lexicon[corpus.words]


READERS = (of_table, of_ratings, of_films, of_rows)
FILE_READERS = (of_rating_file, of_document_file, of_utterance_file, of_text_file)
OF_NUMBERS = {"int", "nullable", "categories of numbers", "objects of numbers"}
CASES = [(reader, form, "numbers") for reader in READERS for form in FORMS]
CASES += [(reader, form, "texts") for reader in READERS for form in FORMS if form not in OF_NUMBERS]
CASES += [(reader, "odd categories", kind) for reader in FILE_READERS for kind in NAMES]


@pytest.mark.parametrize(("reader", "form", "kind"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_clients_have_their_own_rows_in_order(reader, form, kind, tmp_path):
    if form == "arrow":
        pytest.importorskip("pyarrow")
    names, order = NAMES[kind], ORDER[kind]
    if reader is of_utterance_file:  # To which names in another case are the same.
        names, order = [n.replace("B", "b") for n in names], [n for n in order if n != "B"]
    dataset, words = reader(FORMS[form](pd.Series(names, dtype=object), kind), tmp_path)
    found = dict(zip(dataset.client_ids, np.split(words, dataset.offsets[1:-1])))
    assert list(found) == order
    for name in order:
        own = [word for word, other in zip(WORDS, names) if other == name]
        assert found[name].tolist() == own, name


@pytest.mark.parametrize("reader", READERS[:2], ids=lambda reader: reader.__name__)
@pytest.mark.parametrize("form", ["object", "string", "category"])
def test_a_row_without_a_name_is_nobodys(reader, form, tmp_path):
    names = pd.Series(["b", "a", None, "b", "b", "a", "a", "b", "b"], dtype=object)
    with pytest.raises(UserError, match="row 3 names no (client|user)"):
        reader(FORMS[form](names, "texts"), tmp_path)


def test_names_that_read_alike_are_refused(tmp_path):
    """One is a text and the other a number: two people, or one."""
    names = pd.Series(["1", 1, "2", "3", "1", 1, "2", "3", "1"], dtype=object)
    for reader in READERS[:2]:
        with pytest.raises(UserError, match="by texts and by numbers; make all texts"):
            reader(names, tmp_path)

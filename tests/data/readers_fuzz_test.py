"""Every reader, on tables and on what is left of tables: right rows, counted rows, or one line.

Each test tries 200 cases, or as many as the environment variable FEDPERSONAL_FUZZ_CASES says. What
is right is what the modules `csv` and `json` make of the same file.
"""

from __future__ import annotations

import csv
import gzip
import io
import json

import numpy as np
import pandas as pd
import pytest
from damage import BYTES, change_bytes, outcome
from hypothesis import assume, given
from hypothesis import strategies as st

from fedpersonal.data import documents as reddit
from fedpersonal.data.clients import ClientDataset, clients_from_table
from fedpersonal.data.documents import read_documents
from fedpersonal.data.movielens import load_movielens_1m
from fedpersonal.data.ratings import read_ratings
from fedpersonal.data.rows import Column
from fedpersonal.data.sentences import count_words, read_text, split_sentences, split_words
from fedpersonal.data.stack_overflow import StackOverflowClients
from fedpersonal.data.tables import read_table
from fedpersonal.data.utterances import read_utterances
from fedpersonal.data.vocabulary import Vocabulary

_SEPARATORS = {"csv": ",", "tsv": "\t", "jsonl": None}
_NAMES = st.one_of(
    st.sampled_from(["a", "b", "B", "nan", "NA", "1", "01", "1.0", "None", "true", "é", "e\u0301"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
).filter(str.strip)
_NUMBERS = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6, width=32))
_ROWS = st.lists(
    st.fixed_dictionaries(
        {"user": _NAMES, "text": _NAMES, "context": _NAMES, "rating": _NUMBERS},
        optional={"other": _NAMES},
    ),
    min_size=1,
    max_size=6,
)
_FORMATS = st.tuples(st.sampled_from([*_SEPARATORS]), st.booleans())


def _written(rows, separator):
    """A table of these rows, as the modules of the standard library write it."""
    if separator is None:
        return "".join(json.dumps(r, ensure_ascii=i % 2 > 0) + "\n" for i, r in enumerate(rows))
    file = io.StringIO(newline="")
    writer = csv.DictWriter(
        file, ["context", "user", "rating", "other", "text"], delimiter=separator
    )
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _rows(content, separator):
    """What a naive reader makes of a table: rows, and how many lines are none."""
    file = io.StringIO(content.decode("utf-8-sig", "surrogateescape"), newline="")
    rows, bad = [], 0
    if separator is None:
        for line in filter(str.strip, file):
            try:
                rows.append(json.loads(line, parse_int=str, parse_float=str))
            except (ValueError, RecursionError):
                bad += 1
        return rows, bad
    reader, names = csv.reader(file, delimiter=separator, strict=True), None
    while True:
        line = reader.line_num
        try:
            row = next(reader)
        except StopIteration:
            return rows, bad
        except csv.Error:
            bad += reader.line_num - line
            continue
        if not row or (len(row) == 1 and row[0].isspace()):
            continue
        if names is None:
            names = row
        else:
            rows.append(dict(zip(names, row + [""] * len(names))))


@pytest.fixture(name="write", scope="module")
def _write(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzzed")

    def write(content, format, name="t"):
        extension, zipped = format
        path = folder / (f"{name}.{extension}" + ".gz" * zipped)
        path.write_bytes(gzip.compress(content, 1, mtime=0) if zipped else content)
        return path

    return write


def _read_table(path):
    columns = [Column("user"), Column("rating", "real"), Column("time", "order", required=False)]
    return read_table(path, columns, bad_rows="count")


def _is_within(few, many):
    rest = iter(many)
    return all(any(one == other for other in rest) for one in few)


@given(_ROWS, _FORMATS)
def test_tables(write, rows, format):
    separator = _SEPARATORS[format[0]]
    content = _written(rows, separator).encode()
    table = _read_table(write(content, format))
    naive, bad = _rows(content, separator)
    assert not bad and not any(table.report.values())
    assert list(table.columns["user"]) == [row["user"] for row in naive]
    expected = np.array([float(row["rating"]) for row in naive], np.float32)
    np.testing.assert_allclose(table.columns["rating"], expected, rtol=1e-6)


@given(_ROWS, _FORMATS, BYTES, st.booleans())
def test_damaged_tables(write, rows, format, changes, packed):
    separator = _SEPARATORS[format[0]]
    content = _written(rows, separator).encode()
    if packed and format[1]:  # The gzip file is damaged instead.
        path = write(content, format)
        path.write_bytes(change_bytes(path.read_bytes(), changes))
        outcome(lambda: _read_table(path), path)
        return
    content = change_bytes(content, changes)
    path = write(content, format)
    table = outcome(lambda: _read_table(path), path)
    if table is not None:
        naive, bad = _rows(content, separator)
        assert len(table.lines) + sum(table.report.values()) == len(naive) + bad
        users = [str(row.get("user")) for row in naive if isinstance(row, dict)]
        users = [{"True": "1", "False": "0"}.get(user, user) for user in users]
        kept = [{"True": "1", "False": "0"}.get(user, user) for user in table.columns["user"]]
        assert _is_within(kept, users)
        assert np.isfinite(table.columns["rating"]).all()
    refused = outcome(lambda: read_table(path, [Column("user")], bad_rows="refuse"), path)
    assert refused is None or len(refused.lines) == len(_rows(content, separator)[0])


def _read_ratings(path):
    return read_ratings(path, item_column="text", time_column=None)


@given(_ROWS, _FORMATS)
def test_ratings(write, rows, format):
    separator = _SEPARATORS[format[0]]
    content = _written(rows, separator).encode()
    ratings = _read_ratings(write(content, format))
    expected = {(r["user"], r["text"]): float(r["rating"]) for r in _rows(content, separator)[0]}
    users, items = ratings.user_ids[ratings.users], ratings.item_ids[ratings.items]
    assert sorted(zip(users, items)) == sorted(expected)
    values = [expected[pair] for pair in zip(users, items)]
    np.testing.assert_allclose(ratings.ratings, np.array(values, np.float32), rtol=1e-6)


@given(_ROWS, _FORMATS, BYTES)
def test_damaged_ratings(write, rows, format, changes):
    separator = _SEPARATORS[format[0]]
    content = change_bytes(_written(rows, separator).encode(), changes)
    path = write(content, format)
    ratings = outcome(lambda: _read_ratings(path), path)
    if ratings is not None:
        count = ratings.ratings.size + sum(ratings.report.values())
        assert (count, 0) == (len(_rows(content, separator)[0]), _rows(content, separator)[1])


_STARS = st.tuples(*[st.integers(1, 10**5)] * 2, st.integers(1, 5), st.integers(0, 10**9))


@given(st.lists(_STARS, min_size=1, max_size=6), st.one_of(st.just([]), BYTES))
def test_movielens(write, stars, changes):
    content = "".join("::".join(map(str, row)) + "\n" for row in stars).encode()
    path = write(change_bytes(content, changes), ("dat", False), name="ratings")
    ratings = outcome(lambda: load_movielens_1m(path), path)
    if not changes:
        expected = {(u, i): r for u, i, r, t in sorted(stars, key=lambda row: row[3])}
        users, items = ratings.user_ids[ratings.users], ratings.item_ids[ratings.items]
        found = dict(zip(zip(map(int, users), map(int, items)), ratings.ratings))
        assert found == expected
    elif ratings is not None:
        lines = io.StringIO(path.read_text("latin-1"), newline="")
        records = csv.reader(lines, delimiter=":", strict=True)
        given = sum(bool(row) and not (len(row) == 1 and row[0].isspace()) for row in records)
        assert ratings.ratings.size + sum(ratings.report.values()) == given


def _groups(owners, values):
    groups = {}
    for owner, value in zip(owners, values):
        groups.setdefault(owner, []).append(value)
    return groups


def _read_texts(kind, path):
    """A reader's texts as lists by user, how many there are, and what is missing."""
    if kind == "text":
        corpus = read_text(path, min_sentences=1, max_sentences=10**6)
        bounds = zip(corpus.sentence_offsets, corpus.sentence_offsets[1:])
        texts = [tuple(corpus.lexicon[corpus.words[first:last]]) for first, last in bounds]
        owners = np.repeat(corpus.client_ids, np.diff(corpus.client_offsets))
        return _groups(owners, texts), len(texts), corpus.report
    if kind == "documents":
        found = read_documents(path, num_labels=10**6, min_texts=1)
    else:
        found = read_utterances(path, min_tokens=1)
    texts = zip(found.texts, found.label_names[found.labels])
    owners = np.repeat(found.client_ids, np.diff(found.offsets))
    return _groups(owners, texts), len(found.texts), found.report


def _expected_texts(kind, rows):
    if kind == "text":
        found = [(r["user"], tuple(words)) for r in rows for words in split_words(r["text"])]
    elif kind == "documents":
        found = [(r["user"], (r["text"], r["context"])) for r in rows]
    else:
        split = [(r, s) for r in rows for s in split_sentences(r["text"])]
        found = [(r["user"], (s, r["context"])) for r, s in split if count_words([s])[0]]
    return _groups(*zip(*found)) if found else {}


@pytest.mark.parametrize("kind", ["text", "documents", "utterances"])
@given(_ROWS, _FORMATS, st.one_of(st.just([]), BYTES))
def test_texts(write, kind, rows, format, changes):
    separator = _SEPARATORS[format[0]]
    if kind == "utterances":  # Which makes one spelling of names, another test's matter.
        rows = [{**r, "user": f"u{i % 2}", "context": f"c{i % 3}"} for i, r in enumerate(rows)]
    content = change_bytes(_written(rows, separator).encode(), changes)
    path = write(content, format)
    found = outcome(lambda: _read_texts(kind, path), path)
    naive, bad = _rows(content, separator)
    if not changes:
        assume(found is not None or len({row["context"] for row in naive}) > 1)
        expected = _expected_texts(kind, naive)
        assert (found is None and not expected) or found[0] == expected
        return
    if found is None:
        return
    texts, count, report = found
    wanted = [Column(name) for name in ("user", "text", "context")[: 2 + (kind != "text")]]
    table = read_table(path, [*wanted, Column("time", "time", False)], bad_rows="count")
    left_out = len(naive) + bad - len(table.lines)
    assert sum(table.report.values()) == left_out
    rows = [dict(zip(table.columns, row)) for row in zip(*table.columns.values())]
    expected = _expected_texts(kind, [{"context": "", **row} for row in rows])
    assert count == sum(map(len, expected.values()))
    assert {what: n for what, n in report.items() if what in table.report} == {
        what: n for what, n in table.report.items() if n
    }


_ANY_NAME = st.text(st.sampled_from("ab \0\n\ud800\udfff\u00e9"), max_size=4)
_BYTES = st.one_of(st.binary(max_size=4), st.sampled_from([b"[deleted]", b"a\0b", b"a\0c", b"zoo"]))


@given(st.lists(st.tuples(_BYTES, _BYTES, _BYTES), min_size=1, max_size=8))
def test_reddit(posts):
    columns = dict(zip(("author", "subreddit", "body"), zip(*posts)))

    def read(names):
        yield tuple(np.array([*columns[name], None], object)[:-1] for name in names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reddit, "open_tfds", lambda *_, **__: read)
        found = outcome(lambda: reddit.load_reddit(num_labels=9, min_texts=1), "reddit: ")
    if found is not None:
        assert found.texts.size + sum(found.report.values()) == len(posts)
        assert not any("\0" in name for name in found.client_ids)


class _Client:
    def __init__(self, sentences):
        self._sentences = sentences

    def batch(self, size):
        return self

    def as_numpy_iterator(self):
        tokens, dates = ([*map(list, zip(*self._sentences))] + [[], []])[:2]
        yield {"tokens": tokens, "creation_date": dates}


class _Clients:
    def __init__(self, clients):
        self.client_ids = list(clients)
        self.serializable_dataset_fn = lambda name: _Client(clients[name])


_SENTENCES = st.lists(st.tuples(_BYTES, _BYTES), max_size=4)


@given(st.dictionaries(_ANY_NAME, _SENTENCES, max_size=4), st.integers(1, 3))
def test_stack_overflow(clients, most):
    vocabulary = Vocabulary(["the", "is"], 1)

    def open_clients():
        return StackOverflowClients(_Clients(clients), vocabulary, name="n", max_sentences=most)

    found = outcome(open_clients, "client_ids: ")
    assert (found is None) == any(map(_is_no_name, clients))
    if found is not None:
        corpus = found.corpus(np.arange(len(clients)))
        given = sum(map(len, clients.values()))
        assert corpus.num_sentences + sum(corpus.report.values()) == given
        assert found.subset(np.arange(len(clients))).num_examples == corpus.num_sentences


def _is_no_name(name):
    return "\0" in name or any("\ud800" <= character <= "\udfff" for character in name)


@given(st.lists(st.tuples(_ANY_NAME, st.integers(0, 9)), min_size=1, max_size=8))
def test_own_programs(rows):
    table = pd.DataFrame(rows, columns=["who", "x"], dtype=object).astype({"x": int})
    options = {"client_column": "who", "features": {"x": "x"}, "label_column": "x"}
    found = outcome(lambda: clients_from_table(table, **options), "client_column='who': ")
    expected = _groups(*zip(*rows))
    assert (found is None) == any(map(_is_no_name, expected))
    if found is not None:
        assert {n: found.client(i)[1].tolist() for i, n in enumerate(found.client_ids)} == expected
    ids = np.array([*expected, None], object)[:-1]
    offsets = np.arange(ids.size + 1)
    direct = outcome(lambda: ClientDataset(ids, offsets, {}, offsets[1:]), "client_ids: ")
    assert (direct is None) == (found is None)

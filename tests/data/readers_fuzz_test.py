"""Every reader, on tables and on what is left of tables: right rows, counted rows, or one line.

Each test tries 25 cases, or as many as the environment variable FEDPERSONAL_FUZZ_CASES says. What
is right is what the modules `csv` and `json` make of the same file.
"""

from __future__ import annotations

import codecs
import csv
import functools
import gzip
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from damage import BYTES, change_bytes, outcome
from hypothesis import assume, given
from hypothesis import strategies as st

from fedpersonal.data.clients import ClientDataset, clients_from_table
from fedpersonal.data.formats import Column, TableFile
from fedpersonal.data.tables import read_table
from fedpersonal.suite.readers import documents as reddit
from fedpersonal.suite.readers.documents import read_documents
from fedpersonal.suite.readers.movielens import load_movielens_1m
from fedpersonal.suite.readers.ratings import read_ratings
from fedpersonal.suite.readers.sentences import count_words, read_text, split_sentences, split_words
from fedpersonal.suite.readers.stack_overflow import StackOverflowClients
from fedpersonal.suite.readers.utterances import read_utterances
from fedpersonal.suite.readers.vocabulary import Vocabulary

_SEPARATORS = {"csv": ",", "tsv": "\t", "jsonl": None, "json": None}
_NAMES = st.one_of(
    st.sampled_from(
        ["a", "b", "B", "nan", "NA", "9", "10", "01", "1.0", "None", "true", "é", "e\u0301"]
    ),
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
    """A table of these rows, as the modules of the standard library write it, or plain."""
    if separator is None:
        return "".join(json.dumps(r, ensure_ascii=i % 2 > 0) + "\n" for i, r in enumerate(rows))
    names = ["context", "user", "rating", "other", "text"]
    if separator == "\t":
        lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
        return "".join("\t".join(line) + "\n" for line in lines)
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, names, delimiter=separator)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _rows(content, separator):
    """What a naive reader makes of a table: rows, and how many lines are none."""
    file = io.StringIO(content.decode("utf-8-sig", "surrogateescape"), newline="")
    rows, bad = [], 0
    if separator == "\t":
        lines = [line.rstrip("\r\n").split("\t") for line in file]
        names, *lines = [line for line in lines if len(line) > 1 or line[0].strip()] or [()]
        return [dict(zip(names, line + [""] * len(names))) for line in lines], 0
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


def _one_line(value):
    return re.sub("[\t\r\n]", "_", value) if isinstance(value, str) else value


@pytest.fixture(name="write", scope="module")
def _write(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzzed")

    def write(content, format, name="t"):
        extension, zipped = format
        path = folder / (f"{name}.{extension}" + ".gz" * zipped)
        path.write_bytes(gzip.compress(content, 1, mtime=0) if zipped else content)
        return path

    return write


def _groups(pairs):
    groups = {}
    for owner, value in pairs:
        groups.setdefault(owner, []).append(value)
    return groups


def _as_name(value):
    return {"True": "1", "False": "0"}.get(str(value), str(value))


def _in_order(names):
    are_numbers = all(name.isdecimal() and len(name) <= 18 for name in names)
    return sorted(names, key=lambda name: (int(name), name) if are_numbers else name)


def _is_within(few, many):
    rest = iter(many)
    return all(any(one == other for other in rest) for one in few)


def _read_ratings(path):
    """The ratings by user, how many there are, and what is missing."""
    found = read_ratings(path, item_column="text", time_column=None)
    rated = zip(found.item_ids[found.items], found.ratings.tolist())
    return _groups(zip(found.user_ids[found.users], rated)), found.ratings.size, found.report


def _read_sentences(path):
    corpus = read_text(path, min_sentences=1, max_sentences=10**6)
    bounds = zip(corpus.sentence_offsets, corpus.sentence_offsets[1:])
    texts = [tuple(corpus.lexicon[corpus.words[first:last]]) for first, last in bounds]
    owners = np.repeat(corpus.client_ids, np.diff(corpus.client_offsets))
    return _groups(zip(owners, texts)), len(texts), corpus.report


def _read_labelled(read, path, **options):
    found = read(path, **options)
    texts = zip(found.texts, found.label_names[found.labels])
    owners = np.repeat(found.client_ids, np.diff(found.offsets))
    return _groups(zip(owners, texts)), len(found.texts), found.report


def _expected_ratings(rows):
    last = {}
    for row in rows:
        last.pop((row["user"], row["text"]), None)
        last[row["user"], row["text"]] = float(np.float32(row["rating"]))
    return [(user, (item, rating)) for (user, item), rating in last.items()]


def _expected_utterances(rows):
    split = [(r, s) for r in rows for s in split_sentences(r["text"])]
    return [(r["user"], (s, r["context"])) for r, s in split if count_words([s])[0]]


# By reader: what it makes of a file, what it should make of rows, and the columns it asks for.
_READERS = {
    "ratings": (
        _read_ratings,
        _expected_ratings,
        [Column("user"), Column("text"), Column("rating", "real")],
    ),
    "text": (
        _read_sentences,
        lambda rows: [(r["user"], tuple(words)) for r in rows for words in split_words(r["text"])],
        [Column("user"), Column("text"), Column("time", "time", False)],
    ),
    "documents": (
        functools.partial(_read_labelled, read_documents, num_labels=10**6, min_texts=1),
        lambda rows: [(r["user"], (r["text"], r["context"])) for r in rows],
        [*map(Column, ("user", "text", "context")), Column("time", "time", False)],
    ),
    "utterances": (
        functools.partial(_read_labelled, read_utterances, min_tokens=1),
        _expected_utterances,
        [*map(Column, ("user", "text", "context")), Column("time", "time", False)],
    ),
}


@pytest.mark.parametrize("reader", _READERS)
@given(_ROWS, _FORMATS, st.one_of(st.just([]), BYTES), st.booleans())
def test_tables(write, reader, rows, format, changes, packed):
    separator = _SEPARATORS[format[0]]
    read, expect, columns = _READERS[reader]
    if reader == "utterances":  # Which makes one spelling of names, another test's matter.
        rows = [{**r, "user": f"u{i % 2}", "context": f"c{i % 3}"} for i, r in enumerate(rows)]
    if separator == "\t":  # Which a value cannot hold then.
        rows = [{k: _one_line(value) for k, value in row.items()} for row in rows]
    content = _written(rows, separator).encode()
    if packed and format[1]:  # The gzip file is damaged instead.
        path = write(content, format)
        path.write_bytes(change_bytes(path.read_bytes(), changes))
        outcome(lambda: read(path), path)
        return
    content = change_bytes(content, changes)
    path = write(content, format)
    outcome(lambda: read(path), path)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return
    # What looks like other rows within a value, or like a quoted value, is refused otherwise.
    quoting = {",": "double", "\t": "none"}.get(separator, "auto")
    path = TableFile.from_path(path, quoting=quoting)
    naive, bad = _rows(content, separator)
    found = outcome(lambda: read(path), path)
    table = outcome(lambda: read_table(path, columns, bad_rows="count"), path)
    strict = outcome(lambda: read_table(path, columns, bad_rows="refuse"), path)
    if table is not None:
        left_out = sum(table.report.values())
        assert len(table.lines) + left_out == len(naive) + bad
        assert (strict is not None) == (left_out == 0)
        users = [_as_name(row.get("user")) for row in naive if isinstance(row, dict)]
        assert _is_within([_as_name(user) for user in table.columns["user"]], users)
    if not changes:
        expected = _groups(expect(naive))
        assume(found is not None or len({row["context"] for row in naive}) > 1)
        assert not bad and not left_out
        assert (found is None and not expected) or found[0] == expected
        assert found is None or [*found[0]] == _in_order(expected)
    elif found is not None:
        kept = [dict(zip(table.columns, row)) for row in zip(*table.columns.values())]
        expected = _groups(expect([{"context": "", **row} for row in kept]))
        _, count, report = found
        assert count == sum(map(len, expected.values()))
        assert {what: n for what, n in report.items() if what in table.report} == {
            what: n for what, n in table.report.items() if n
        }


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
        given = sum(bool(line.strip()) for line in lines)
        assert ratings.ratings.size + sum(ratings.report.values()) == given


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
    expected = _groups(rows)
    assert (found is None) == any(map(_is_no_name, expected))
    if found is not None:
        assert {n: found.client(i)[1].tolist() for i, n in enumerate(found.client_ids)} == expected
    ids = np.array([*expected, None], object)[:-1]
    offsets = np.arange(ids.size + 1)
    direct = outcome(lambda: ClientDataset(ids, offsets, {}, offsets[1:]), "client_ids: ")
    assert (direct is None) == (found is None)

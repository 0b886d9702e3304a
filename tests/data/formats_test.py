"""Tables as other programs write them: separators, headers, quotation marks, encodings."""

from __future__ import annotations

import codecs
import csv
import functools
import gzip
import re

import numpy as np
import pytest

from fedpersonal.data.formats import Column, TableFile
from fedpersonal.data.tables import read_table
from fedpersonal.errors import UserError
from fedpersonal.suite.readers.documents import read_documents
from fedpersonal.suite.readers.ratings import read_ratings
from fedpersonal.suite.readers.sentences import read_text
from fedpersonal.suite.readers.utterances import read_other_texts, read_utterances

_PAIRS = [(user, item) for user in range(4) for item in range(3)]
_RATINGS = [(str(u), str(i), str(1 + (u + i) % 5), f"97830{u}") for u, i in _PAIRS]
_NAMES = ("user", "item", "rating", "time")
_TEXTS = [
    (f"u{i % 4:02d}", f"tea, rain number {i}", "home" if i % 3 else "work") for i in range(24)
]
_TEXT_NAMES = ("user", "text", "context")
# Labels and names of 24 rows whose texts have lone quotation marks.
_QUOTED = [
    (user, f'"{text}' if i % 12 == 2 else f'{text}"' if i % 12 == 9 else text, label)
    for i, (user, text, label) in enumerate(_TEXTS)
]


def _write(path, rows, separator, *, header=None, encoding="utf-8", end="\n"):
    lines = [*([header] if header else []), *rows]
    content = "".join(separator.join(line) + end for line in lines).encode(encoding)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def _flags(message):
    """The format that a message advises."""
    found = re.findall(r"--(separator|header|quoting|encoding)=(\S+?)(?:[,;]? |,?$)", message)
    flags = dict(reversed(found))  # The first of two.
    if "header" in flags:
        flags["header"] = flags["header"].split(",")
    return flags


def _rated(path, **columns):
    found = read_ratings(path, **columns)
    users, items = found.user_ids[found.users], found.item_ids[found.items]
    return sorted(zip(users, items, found.ratings.astype(int).astype(str), found.times.astype(str)))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz"])
@pytest.mark.parametrize("separator", ["::", ",", ";", "|", "\t", " ", "   "])
@pytest.mark.parametrize("header", [None, _NAMES, ("who", "what", "stars", "when")])
def test_following_the_advice_reads_the_ratings(tmp_path, separator, name, header, end):
    path = _write(tmp_path / name, _RATINGS, separator, header=header, end=end)
    try:
        assert _rated(path) == _RATINGS
        return
    except UserError as error:
        message = str(error)
    columns = dict(
        re.findall("--((?:user|item|rating)_column)", message)
        and {f"{kind}_column": own for kind, own in zip(_NAMES, header or _NAMES)}
    )
    assert message.startswith(f"{path}: there are no columns 'user', 'item', 'rating'; ")
    flags = _flags(message)
    assert flags or columns
    assert ("header" in flags) == (header is None)
    assert _rated(TableFile.from_path(path, **flags), **columns) == _RATINGS


_READERS = {
    "documents": functools.partial(read_documents, min_texts=1, num_labels=9),
    "utterances": functools.partial(read_utterances, min_tokens=1),
    "text": functools.partial(read_text, min_sentences=1),
}


def _count(found):
    return getattr(found, "num_sentences", None) or found.texts.size


@pytest.mark.parametrize("reader", _READERS)
def test_tab_separated_text_has_no_quotation(tmp_path, reader):
    read = _READERS[reader]
    found = read(_write(tmp_path / "t.tsv", _QUOTED, "\t", header=_TEXT_NAMES))
    assert _count(found) == len(_QUOTED) and not found.report
    if reader == "documents":
        for i, user in enumerate(found.client_ids):
            texts = found.texts[found.offsets[i] : found.offsets[i + 1]].tolist()
            assert texts == [text for who, text, _ in _QUOTED if who == user]


@pytest.mark.parametrize("reader", _READERS)
@pytest.mark.parametrize("separator", [";", "|", ","])
def test_a_quoted_value_that_holds_other_rows_is_refused(tmp_path, reader, separator):
    rows = [(user, text.replace(",", ""), label) for user, text, label in _QUOTED]
    path = _write(tmp_path / "t.csv", rows, separator, header=_TEXT_NAMES)
    file, read = TableFile.from_path(path, separator=separator), _READERS[reader]
    with pytest.raises(UserError, match="line 4: .* seems to hold the rows below"):
        read(file)
    found = read(TableFile.from_path(path, separator=separator, quoting="none"))
    assert _count(found) == len(rows) and not found.report
    # Whoever insists has one value.
    columns = [*map(Column, _TEXT_NAMES)]
    insisting = TableFile.from_path(path, separator=separator, quoting="double")
    assert len(read_table(insisting, columns, bad_rows="refuse").lines) == len(rows) - 2 * 7


def test_swallowed_ratings_are_refused(tmp_path):
    rows = [list(row) for row in _RATINGS]
    rows[2][1], rows[7][1] = '"Alien', 'Aliens"'
    path = _write(tmp_path / "t.csv", rows, ",", header=_NAMES)
    with pytest.raises(UserError, match="line 4: .* the rows below.* --quoting=none"):
        read_ratings(path)
    assert read_ratings(TableFile.from_path(path, quoting="none")).ratings.size == len(rows)


def test_honest_values_of_several_lines_are_read(tmp_path):
    texts = ["Hi, all\nI came, I saw", "a,b\nc,d\ne,f", "poem\n\n, and\nmore", '"so", he\nsaid, ok']
    rows = [(f"u{i % 3}", text, "home") for i, text in enumerate(texts * 5)]
    path = tmp_path / "t.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([_TEXT_NAMES, *rows])
    table = read_table(path, [*map(Column, _TEXT_NAMES)], bad_rows="refuse")
    assert [*zip(*table.columns.values())] == rows


def test_a_quote_that_is_not_closed_is_counted_with_advice(tmp_path):
    rows = [*_RATINGS[:3], ("9", '"open', "3", "1"), *_RATINGS[3:]]
    path = _write(tmp_path / "t.csv", rows, ",", header=_NAMES)
    with pytest.raises(UserError, match="line 5: malformed: .*; if quotes are text.*=none$"):
        read_ratings(path)
    table = read_table(path, [Column("user")], bad_rows="count")
    assert +table.report == {
        "lines left out: malformed (if quotes are text, give --quoting=none)": 10
    }


def test_quoted_tab_separated_text_is_noticed(tmp_path):
    path = tmp_path / "t.tsv"
    rows = [("al", "one\nand two", "home"), ("bo", 'said "no"', "work")]
    columns = [*map(Column, _TEXT_NAMES)]
    reasons = {csv.QUOTE_ALL: "stand in quotes", csv.QUOTE_MINIMAL: "line 2: .*lacks"}
    for quoting, why in reasons.items():
        with open(path, "w", newline="") as file:
            csv.writer(file, delimiter="\t", quoting=quoting).writerows([_TEXT_NAMES, *rows])
        with pytest.raises(UserError, match=f"{why}.*--quoting=double") as caught:
            read_table(path, columns, bad_rows="count")
        file = TableFile.from_path(path, quoting=_flags(str(caught.value))["quoting"])
        table = read_table(file, columns, bad_rows="refuse")
        assert [*zip(*table.columns.values())] == rows


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize(
    ("encoding", "mark", "given"),
    [
        ("utf-8", codecs.BOM_UTF8, None),
        ("utf-16-le", codecs.BOM_UTF16_LE, None),
        ("utf-16-be", codecs.BOM_UTF16_BE, None),
        ("utf-32-le", codecs.BOM_UTF32_LE, None),
        ("utf-16-le", codecs.BOM_UTF16_LE, "utf-16-le"),
        ("utf-16-le", b"", "utf-16-le"),
        ("latin-1", b"", "latin-1"),
        ("cp1252", b"", "cp1252"),
        ("utf-8", codecs.BOM_UTF8, "UTF8"),
    ],
)
def test_encodings(tmp_path, name, encoding, mark, given):
    rows = [("Zoë", "déjà vu"), ("Søren", "smørrebrød")]
    content = mark + "".join(",".join(r) + "\n" for r in [("user", "text"), *rows]).encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    file = TableFile.from_path(tmp_path / name, **({"encoding": given} if given else {}))
    table = read_table(file, [Column("user"), Column("text")], bad_rows="refuse")
    assert [*zip(*table.columns.values())] == rows


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_another_encoding_is_named_in_the_refusal(tmp_path, name):
    text = "Zoë" if name == "t.csv" else '{"user": "Zoë"}'
    content = ("user\n" if name == "t.csv" else "") + text + "\n"
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    for bad_rows in ("refuse", "count"):
        with pytest.raises(UserError, match="not UTF-8.*--encoding=latin-1") as caught:
            read_table(tmp_path / name, [Column("user")], bad_rows=bad_rows)
    encoding = re.search("--encoding=([a-z0-9-]+)", str(caught.value))[1]
    table = read_table(
        TableFile.from_path(tmp_path / name, encoding=encoding), [Column("user")], bad_rows="refuse"
    )
    assert table.columns["user"].tolist() == ["Zoë"]
    (tmp_path / name).write_bytes(content.encode("utf-16-le") + b"\x00\xd8a\x00")
    with pytest.raises(UserError, match=f"{name}.* not utf-16-le"):
        read_table(
            TableFile.from_path(tmp_path / name, encoding="utf-16-le"),
            [Column("user")],
            bad_rows="count",
        )


def test_a_table_of_any_name_is_read_as_it_is_described(tmp_path):
    rows = [("x", *row) for row in _RATINGS]
    path = _write(tmp_path / "u.data", rows, "   ")
    with pytest.raises(UserError, match=r"must end in .csv, .*, or --separator"):
        read_ratings(path)
    file = TableFile.from_path(path, separator="whitespace", header=("-", *_NAMES))
    assert _rated(file) == _RATINGS
    path = _write(tmp_path / "t.csv", _RATINGS, ",", header=_NAMES)
    with pytest.raises(UserError, match="line 1: it names the columns: leave --header out"):
        read_ratings(TableFile.from_path(path, header=_NAMES))
    with pytest.raises(UserError, match="line 1: 4 values for 3 columns of --header; name the"):
        read_ratings(
            TableFile.from_path(_write(path, _RATINGS, ",", header=None), header=_NAMES[:3])
        )
    with pytest.raises(UserError, match="no column 'rating' in --header; .*; say by --rating_col"):
        read_ratings(TableFile.from_path(path, header=("user", "item", "stars", "time")))


@pytest.mark.parametrize(
    ("name", "format", "why"),
    [
        ("t.csv", {"separator": ""}, "--separator is ''; it must be one of comma, semicolon, tab"),
        ("t.csv", {"separator": "commas"}, "--separator is 'commas'; .* [(]no letters"),
        ("t.csv", {"separator": '"'}, "--separator is '\"'"),
        ("t.csv", {"encoding": "utf-9"}, "--encoding is utf-9; .* such as"),
        ("t.csv", {"encoding": "rot13"}, "--encoding is rot13"),
        ("t.csv", {"separator": "::", "quoting": "double"}, "needs a --separator of one character"),
        ("t.jsonl", {"separator": "tab"}, "JSON lines have no --separator"),
        ("t.json", {"header": ["user"]}, "JSON lines have no --header"),
        ("t.jsonl.gz", {"quoting": "none"}, "JSON lines have no --quoting"),
    ],
)
def test_a_format_of_no_use_is_refused(name, format, why):
    with pytest.raises(UserError, match=why):
        TableFile.from_path(name, **format)


def test_other_texts_are_read_in_the_same_format(tmp_path):
    path = _write(tmp_path / "t.txt", _TEXTS, "|")
    file = TableFile.from_path(path, separator="pipe", header=_TEXT_NAMES)
    others = read_other_texts(file, ["u00"], min_tokens=1)
    assert others.tolist() == [text for user, text, _ in _TEXTS if user != "u00"]
    cached = [
        read_text(
            TableFile.from_path(path, separator="pipe", header=names), cache_dir=tmp_path / "cache"
        )
        for names in (_TEXT_NAMES, ("context", "text", "user"))
    ]
    assert [corpus.num_clients for corpus in cached] == [4, 2]
    np.testing.assert_array_equal(cached[1].client_ids, ["home", "work"])

"""Bad lines of separated values are left out, and the good ones after them are not."""

from __future__ import annotations

import gzip

import pytest

from fedpersonal.data.tables.reading import read_lenient_table
from fedpersonal.errors import UserError


def _read(path, content: bytes, **options):
    path.write_bytes(content)
    return read_lenient_table(path, ["user", "text"], **options)


def test_bad_rows_of_a_csv_file(tmp_path):
    content = (
        b"text,other,user\n"
        b"one,,a\n"
        b"\n"
        b"caf\xe9,,a\n"
        b"bytes elsewhere,\xff,a\n"
        b'"two\nlines",,b\n'
        b"too,many,values,here\n"
        b'"never" closed well,,b\n'
        b"short\n"
        b"last,,c\n"
    )
    table = _read(tmp_path / "t.csv", content)
    assert list(table.columns["user"]) == ["a", "a", "b", "", "c"]
    assert list(table.columns["text"]) == ["one", "bytes elsewhere", "two\nlines", "short", "last"]
    assert table.skipped == {"not UTF-8": 1, "more values than columns": 1, "malformed": 1}
    assert [table.line_of(i) for i in range(5)] == [2, 5, 6, 10, 11]


def test_every_line_that_an_open_quote_swallows_counts(tmp_path):
    content = b"user,text\na,good\n" + b'b,"open\n' + b"c,lost\n" * 9
    table = _read(tmp_path / "t.csv", content)
    assert list(table.columns["user"]) == ["a"]
    assert table.skipped == {"malformed": 10}


def test_optional_columns(tmp_path):
    lines = b'{"user": 1, "text": "x"}\n{"user": 2.5, "text": "y", "time": 7}\n'
    table = _read(tmp_path / "t.jsonl", lines, optional=["time", "place"])
    assert {name: list(values) for name, values in table.columns.items()} == {
        "user": ["1", "2.5"],
        "text": ["x", "y"],
        "time": ["", "7"],
    }
    assert table.skipped == {}


def test_truth_is_1_and_0_as_a_label_is(tmp_path):
    lines = b'{"user": "a", "text": true}\n{"user": "b", "text": false}\n{"user": [], "text": 1}\n'
    table = _read(tmp_path / "t.jsonl", lines)
    assert list(table.columns["text"]) == ["1", "0"]
    assert table.skipped == {"'user' is not text": 1}


def test_a_broken_archive_is_no_bad_line(tmp_path):
    content = gzip.compress(b"user,text\n" + b"a,b\n" * 1000)[:-9]
    with pytest.raises(UserError, match="not a valid gzip file"):
        _read(tmp_path / "t.csv.gz", content)
    with pytest.raises(UserError, match="absent.csv: no such file"):
        read_lenient_table(tmp_path / "absent.csv", ["user"])

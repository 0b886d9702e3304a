"""Bad rows of tables are refused by line, or left out and counted, and good ones are read."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from fedpersonal.data.rows import Column
from fedpersonal.data.tables import read_table
from fedpersonal.errors import UserError

_USER_AND_TEXT = (Column("user", may_be_empty=True), Column("text"))


def _read(path, content: str | bytes, *more, columns=_USER_AND_TEXT, bad_rows="count"):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(path, [*columns, *more], bad_rows=bad_rows)


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
    lines = {"not UTF-8 (the first: line 4)": 1, "more values than columns": 1, "malformed": 1}
    assert {k: n for k, n in table.report.items() if n} == {
        f"lines left out: {why}": n for why, n in lines.items()
    }
    assert table.lines.tolist() == [2, 5, 6, 10, 11]
    assert table.name == "t"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"caf\xe9,,a", "line 3: not UTF-8"),
        (b"too,many,values,here", "line 3: 4 values for 3 columns"),
        (b'"never" closed well,,b', "line 3: malformed: ',' expected after '\"'"),
        (b" ,,b", "line 3: 'text' is empty: ' '"),
        (b'x,"open\nfor,ever', "line 3: malformed: unexpected end of data"),
    ],
)
def test_the_first_bad_row_is_refused_by_line(tmp_path, row, said):
    with pytest.raises(UserError) as caught:
        _read(tmp_path / "t.csv", b"text,other,user\none,,a\n" + row + b"\n,,\n", bad_rows="refuse")
    assert str(caught.value) == f"{tmp_path / 't.csv'}, {said}"


def test_every_line_that_an_open_quote_swallows_counts(tmp_path):
    content = "user,text\na,good\n" + 'b,"open\n' + "c,lost\n" * 9
    table = _read(tmp_path / "t.csv", content)
    assert list(table.columns["user"]) == ["a"]
    assert table.report["lines left out: malformed"] == 10


def test_optional_columns(tmp_path):
    lines = '{"user": 1, "text": "x"}\n{"user": 2.5, "text": "y", "time": 7}\n'
    more = [Column(name, required=False, may_be_empty=True) for name in ("time", "place")]
    table = _read(tmp_path / "t.jsonl", lines, *more)
    assert {name: list(values) for name, values in table.columns.items()} == {
        "user": ["1", "2.5"],
        "text": ["x", "y"],
        "time": ["", "7"],
    }
    assert not any(table.report.values())
    assert table.order("place").tolist() == [0, 0]


def test_truth_is_1_and_0_as_a_label_is(tmp_path):
    lines = '{"user": "a", "text": true}\n{"user": "b", "text": false}\n{"user": [], "text": 1}\n'
    table = _read(tmp_path / "t.jsonl", lines)
    assert list(table.columns["text"]) == ["1", "0"]
    assert table.report["lines left out: 'user' is not text"] == 1


def test_numbers(tmp_path):
    content = "user,text,n\n" + "".join(f"a,t,{n}\n" for n in ("3", "-1.0", "2.5", "x", "", "1e39"))
    real = _read(tmp_path / "t.csv", content, Column("n", "real"))
    assert real.columns["n"].tolist() == [3, -1, 2.5] and real.columns["n"].dtype == np.float32
    assert real.report["rows with an unreadable 'n'"] == 3
    with pytest.raises(UserError, match="line 5: 'n' is not a finite number: 'x'"):
        _read(tmp_path / "t.csv", content, Column("n", "real"), bad_rows="refuse")


@pytest.mark.parametrize(
    ("kind", "written", "expected"),
    [
        ("time", ["2", "1.5", "noon"], [2, 1.5]),
        (
            "time",
            ["1970-01-02", "1970-01-01T00:00:01.5Z", "1970-01-01T01:00+01:00"],
            [86400, 1.5, 0],
        ),
        # Whichever more rows have.
        ("time", ["5", "1970-01-02", "7"], [5, 7]),
        ("time", ["5", "1970-01-02", "1970-01-01"], [86400, 0]),
        ("order", ["5", "1970-01-02", "1970-01-01"], [86400, 0]),
        ("order", ["s01e10", "s01e02", "s01e10", " "], [2, 1, 2]),
    ],
)
def test_times_are_numbers_or_dates(tmp_path, kind, written, expected):
    content = "user,text,when\n" + "".join(f"a,t,{time}\n" for time in written)
    table = _read(tmp_path / "t.csv", content, Column("when", kind))
    assert table.order("when").tolist() == expected
    left_out = len(written) - len(expected)
    assert table.report["rows with an unreadable 'when'"] == left_out
    if left_out:
        with pytest.raises(UserError, match="'when' is neither a number nor an ISO 8601 date"):
            _read(tmp_path / "t.csv", content, Column("when", kind), bad_rows="refuse")


@pytest.mark.parametrize("bad_rows", ["refuse", "count"])
def test_a_name_of_two_columns_is_said_at_once(tmp_path, bad_rows):
    content = "user,text,user\na,t,b\n"
    with pytest.raises(UserError, match="t.csv: two columns are called 'user'$"):
        _read(tmp_path / "t.csv", content, bad_rows=bad_rows)
    twice = (Column("other"), Column("text"), Column("text"))
    with pytest.raises(UserError, match="must be different ones, got other, text, text$"):
        read_table(tmp_path / "absent.csv", twice, bad_rows=bad_rows)
    # Nobody asked for it.
    table = _read(tmp_path / "t.csv", "user,text,x,x\na,t,1,2\n", bad_rows=bad_rows)
    assert list(table.columns["text"]) == ["t"]


@pytest.mark.parametrize("bad_rows", ["refuse", "count"])
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("t.csv", "", ": the file is empty"),
        ("t.csv", "\n \n", ": the file is empty"),
        ("t.jsonl", "\n", ": the file is empty"),
        ("t.csv.gz", gzip.compress(b"", mtime=0), ": the file is empty"),
        ("t.csv", "user,text\n", ": there is nothing below the header"),
        ("t.csv", "user,body\na,b\n", ": there is no column 'text'; the columns are user, body"),
        ("t.jsonl", '\n{"u": 1, "text": 2}', ", line 2: there is no column 'user'; .* u, text"),
        ("t.csv", 'user,"text\na,b\n', ", line 1: the header is malformed: unexpected end of data"),
        ("t.csv", b"user,\xff\na,b\n", ", line 1: not UTF-8$"),
        ("t.csv", b"user,text\na,\xff\n", "line 2: (1 line left out: )?not UTF-8( |$)"),
        ("t.json", '[{"user": 1}]', ", line 1: not a JSON object"),
        ("t.csv.gz", "user,text\na,b\n", ": not a valid gzip file: Not a gzipped file"),
        (
            "t.csv.gz",
            gzip.compress(b"user,text\n" + b"a,b\n" * 999, mtime=0)[:-9],
            ": not a valid gzip file",
        ),
        ("t.txt", "user,text\n", ": the name of a table must end in .csv, .tsv, .jsonl or .json"),
    ],
)
def test_a_file_of_no_use_is_refused_in_one_line(tmp_path, bad_rows, file, content, message):
    with pytest.raises(UserError, match=message) as caught:
        _read(tmp_path / file, content, bad_rows=bad_rows)
    assert str(caught.value).startswith(str(tmp_path / file))
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(UserError, match="absent.csv: no such file"):
        read_table(tmp_path / "absent.csv", _USER_AND_TEXT, bad_rows="count")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match="folder.csv: cannot be read: Is a directory"):
        read_table(tmp_path / "folder.csv", _USER_AND_TEXT, bad_rows="count")

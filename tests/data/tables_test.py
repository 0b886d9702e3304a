"""Tables of any form: good rows are read, bad ones refused by line, or left out and counted."""

from __future__ import annotations

import functools
import gzip
import json
import tracemalloc

import numpy as np
import pytest

from fedpersonal.data.formats import Column, TableFile
from fedpersonal.data.tables import read_table
from fedpersonal.errors import UserError
from fedpersonal.suite.readers.documents import read_documents
from fedpersonal.suite.readers.ratings import read_ratings
from fedpersonal.suite.readers.sentences import read_text
from fedpersonal.suite.readers.utterances import read_utterances

_COLUMNS = (Column("user"), Column("n", "real"), Column("time", "time", required=False))


def _read(path, content, *columns, bad_rows="count", **format):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(TableFile.from_path(path, **format), columns or _COLUMNS, bad_rows=bad_rows)


def _refusal(path, content, *columns, bad_rows="refuse", **format):
    """What is said against a file of this content, after the file's name."""
    with pytest.raises(UserError) as caught:
        _read(path, content, *columns, bad_rows=bad_rows, **format)
    message = str(caught.value)
    assert message.startswith(str(path)) and message.isprintable() and len(message) < 3000
    return message[len(str(path)) :]


_LATIN_1 = "; if it is another encoding, name it, such as --encoding=latin-1"
_QUOTES = "; if quotes are text, give --quoting=none"


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
        b'"open,,d\n' + b"lost,,d\n" * 9
    )
    table = _read(tmp_path / "t.csv", content, Column("user", may_be_empty=True), Column("text"))
    assert list(table.columns["user"]) == ["a", "a", "b", "", "c"]
    assert list(table.columns["text"]) == ["one", "bytes elsewhere", "two\nlines", "short", "last"]
    lines = {
        f"not UTF-8 (the first: line 4{_LATIN_1})": 1,
        "more values than columns": 1,
        "malformed (if quotes are text, give --quoting=none)": 11,
    }
    assert {k: n for k, n in table.report.items() if n} == {
        f"lines left out: {why}": n for why, n in lines.items()
    }
    assert table.lines.tolist() == [2, 5, 6, 10, 11]
    assert table.name == "t"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("a,good,2", "'n' is not a finite number: 'good'"),
        ("a,,1", "'n' is not a finite number: ''"),
        ("a", "'n' is not a finite number: ''"),
        ("a,nan,1", "'n' is not a finite number: 'nan'"),
        ("a,-inf,1", "'n' is not a finite number: '-inf'"),
        ("a,1e39,1", "'n' is not a finite number: '1e39'"),
        ("a,3,noon", "'time' is neither a number nor an ISO 8601 date: 'noon'"),
        (",3,1", "'user' is empty: ''"),
        (",,", "'user' is empty: ''"),
        ('""', "'user' is empty: ''"),
        (" ,3,1", "'user' is empty: ' '"),
        ("too,many,values,here", "4 values for 3 columns"),
        ('"never" closed well,3,1', f"malformed: '{{separator}}' expected after '\"'{_QUOTES}"),
        # A number does not end at a NUL.
        ("a,3\x007,1", "a NUL character"),
        ("a,3,3\x007", "a NUL character"),
        # What is quoted is short and escaped.
        (
            "a," + "\x1b]0;x\x07" * 99,
            "'n' is not a finite number: '" + "\\x1b]0;x\\x07" * 10 + "'...",
        ),
    ],
)
@pytest.mark.parametrize(
    ("above", "line"),
    [
        ("", 2),
        ("a,3,1\r\n", 3),
        # Blank lines and quoted line breaks count as an editor counts them.
        ("\n  \n", 4),
        ('"a\n\nb",3,1\n\n', 6),
    ],
)
def test_bad_rows_of_separated_values(tmp_path, above, line, row, why):
    content = f"user,n,time\n{above}{row}\nz,3,1\n{row}\n"
    for name, separator in (("t.csv", ","), ("t.tsv", "\t")):
        path, written = tmp_path / name, content.replace(",", separator)
        expected = why.replace("{separator}", separator.encode("unicode_escape").decode())
        assert _refusal(path, written, quoting="double") == f", line {line}: {expected}"
        table = _read(path, written, quoting="double")
        assert table.columns["user"].tolist()[-1] == "z" and sum(table.report.values()) == 2


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{user: 1}", "not a JSON object"),
        ("[1, 2, 3]", "not a JSON object, but a list or its start; each line must be an object"),
        ('{"user": 1}', "there is no column 'n'; the columns are user"),
        ('{"user": null, "n": 3}', "'user' is empty: ''"),
        ('{"user": "", "n": 3}', "'user' is empty: ''"),
        ('{"user": 1, "n": "x"}', "'n' is not a finite number: 'x'"),
        ('{"user": "a", "n": NaN}', "'n' is not a finite number: 'nan'"),
        ('{"user": "a", "n": -Infinity}', "'n' is not a finite number: '-inf'"),
        ('{"user": "a", "n": true}', "'n' must be text or a number, got true"),
        ('{"user": "a", "n": 1, "user": "b"}', "two values of 'user'"),
        ('{"user": NaN, "n": 1}', "'user' must be text or a number, got NaN"),
        ('{"user": {"a": 1}, "n": 1}', "'user' must be text or a number, got an object"),
        ('{"user": [1], "n": 3}', "'user' must be text or a number, got a list"),
        ('{"user": "a", "n": {"n": 1, "n": 2}}', "'n' must be text or a number, got an object"),
    ],
)
@pytest.mark.parametrize(("above", "line"), [("", 2), ('\n{"user": 1, "n": 3}\n \n', 5)])
def test_bad_rows_of_json_lines(tmp_path, above, line, row, why):
    # What nobody asks for may be anything.
    content = f'{{"user": 1, "n": 3}}\n{above}{row}\n{{"user": "z", "n": 2, "x": 1, "x": [NaN]}}\n'
    assert _refusal(tmp_path / "t.jsonl", content) == f", line {line}: {why}"
    table = _read(tmp_path / "t.jsonl", content)
    assert table.columns["user"].tolist()[-1] == "z" and sum(table.report.values()) == 1


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks(tmp_path, end, mark):
    rows = {
        "t.csv": ["user,n", '"a', 'b",1', "", "c,2", "d,x"],
        "t.tsv": ["user\tn", '"a', 'b"\t1', "", "c\t2", "d\tx"],
    }
    for name, written in rows.items():
        content = mark + end.join(written) + end
        refusal = _refusal(tmp_path / name, content, quoting="double")
        assert refusal == ", line 6: 'n' is not a finite number: 'x'"
        table = _read(tmp_path / name, content, quoting="double")
        assert table.columns["user"].tolist() == [f"a{end}b", "c"]
    written = ['{"user": "a\\nb", "n": 1}', "", '{"user": "c", "n": 2}', "{", ""]
    content = mark + end.join(written)
    assert _refusal(tmp_path / "t.jsonl", content) == ", line 4: not a JSON object"
    table = _read(tmp_path / "t.jsonl", content)
    assert table.columns["user"].tolist() == ["a\nb", "c"]
    assert table.columns["n"].tolist() == [1, 2] and table.columns["n"].dtype == np.float32


def test_optional_columns(tmp_path):
    lines = '{"user": 1, "text": "x"}\n{"user": 2.5, "text": "y", "time": 7}\n'
    more = [Column(name, required=False, may_be_empty=True) for name in ("time", "place")]
    table = _read(tmp_path / "t.jsonl", lines, Column("user"), Column("text"), *more)
    assert {name: list(values) for name, values in table.columns.items()} == {
        "user": ["1", "2.5"],
        "text": ["x", "y"],
        "time": ["", "7"],
    }
    assert not any(table.report.values())
    assert table.order("place").tolist() == [0, 0]


def test_names_are_written_as_they_were(tmp_path):
    """Truth is 1 and 0, as a label is; numbers of many digits are as many people."""
    digits = "9" * 5000
    names = [digits, digits[:-1] + "8", "0.12345678901234567", "0.123456789012345678", "1.50"]
    rows = [f'{{"user": {name}}}\n' for name in [*names, "true", "false"]]
    table = _read(tmp_path / "t.jsonl", "".join(rows), Column("user"))
    assert table.columns["user"].tolist() == [*names, "1", "0"]
    refusal = _refusal(tmp_path / "t.jsonl", f'{{"user": "a", "n": {digits}}}\n')
    assert refusal == f", line 1: 'n' is not a finite number: '{'9' * 60}'..."


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
        # What depends on the clock is no time.
        ("time", ["now", "today", "2020-01-01", "NaT"], [1577836800]),
    ],
)
def test_times_are_numbers_or_dates(tmp_path, kind, written, expected):
    columns = (Column("user"), Column("when", kind))
    content = "user,when\n" + "".join(f"a,{time}\n" for time in written)
    table = _read(tmp_path / "t.csv", content, *columns)
    assert table.order("when").tolist() == expected
    left_out = len(written) - len(expected)
    assert table.report["rows with an unreadable 'when'"] == left_out
    if left_out:
        refusal = _refusal(tmp_path / "t.csv", content, *columns)
        assert "'when' is neither a number nor an ISO 8601 date" in refusal


@pytest.mark.parametrize("bad_rows", ["refuse", "count"])
def test_a_name_of_two_columns_is_refused_at_once(tmp_path, bad_rows):
    said = _refusal(tmp_path / "t.csv", "user,n,user\na,1,b\n", bad_rows=bad_rows)
    assert said == ": two columns are called 'user'"
    twice = (Column("other"), Column("text"), Column("text"))
    with pytest.raises(UserError, match="must be different ones, got other, text, text$"):
        read_table(tmp_path / "absent.csv", twice, bad_rows=bad_rows)
    # Nobody asked for it.
    table = _read(tmp_path / "t.csv", "user,n,x,x\na,1,1,2\n", bad_rows=bad_rows)
    assert list(table.columns["user"]) == ["a"]


_LIST = r"line 1: not a JSON object, but a list or its start; each line must be an object"


@pytest.mark.parametrize("bad_rows", ["refuse", "count"])
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("t.csv", "", ": the file is empty"),
        ("t.csv", "\n \n", ": the file is empty"),
        ("t.jsonl", "\n", ": the file is empty"),
        ("t.csv.gz", gzip.compress(b"", mtime=0), ": the file is empty"),
        ("t.csv", "user,n\n", ": there is nothing below the header"),
        ("t.csv", "user,body\na,b\n", ": there is no column 'n'; the columns are user, body"),
        ("t.jsonl", '\n{"u": 1, "n": 2}', ", line 2: there is no column 'user'; .* are u, n"),
        ("t.csv", 'user,"n\na,b\n', ", line 1: the header is malformed: .*; if quotes are"),
        ("t.csv", 'user,n\na,"3\n', ", line 2: .*malformed"),
        ("t.csv", b"user,\xff\na,b\n", ", line 1: not UTF-8; .*--encoding=latin-1$"),
        ("t.csv", b"user,n\na,\xff\n", "line 2: (1 line left out: )?not UTF-8( |;)"),
        ("t.json", '[{"user": 1, "n": 3}, {"user": 1}]', _LIST),
        ("t.jsonl", '[\n{\n"user": 1\n}\n]', _LIST),
        ("t.csv.gz", "user,n\na,b\n", ": not a valid gzip file: Not a gzipped file"),
        (
            "t.csv.gz",
            gzip.compress(b"user,n\n" + b"a,1\n" * 999, mtime=0)[:-9],
            ": not a valid gzip file",
        ),
        ("t.txt", "user,n\n", ": the name of a table must end in .csv, .tsv, .jsonl or .json"),
        ("t.csv", f"user,n\n{'a' * (1 << 18)},3\n", "a text of more than 131,072 characters"),
        ("t.csv", "user,n\na,b\n".encode("utf-16-le"), "NUL .* give --encoding=utf-16-le$"),
        ("t.csv", "user,n\na,b\n".encode("utf-16-be"), "NUL .* give --encoding=utf-16-be$"),
        ("t.jsonl", '{"user":1,"n":2}'.encode("utf-16-le"), "NUL .*, as UTF-16 .* --encoding"),
    ],
)
def test_a_file_of_no_use_is_refused_in_one_line(tmp_path, bad_rows, file, content, message):
    columns = (Column("user"), Column("n"))
    path = tmp_path / file
    with pytest.raises(UserError, match=message):
        _read(path, content, *columns, bad_rows=bad_rows)
    _refusal(path, content, *columns, bad_rows=bad_rows)


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(UserError, match="absent.csv: no such file"):
        read_table(tmp_path / "absent.csv", _COLUMNS, bad_rows="count")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match="folder.csv: cannot be read: Is a directory"):
        read_table(tmp_path / "folder.csv", _COLUMNS, bad_rows="count")


def test_deep_nesting(tmp_path):
    path = tmp_path / "t.jsonl"
    for line in ("[" * 200_000, '{"user":' * 200_000, '{"user": ' + "[" * 200_000):
        assert _refusal(path, line + "\n").startswith(", line 1: not a JSON object")
        table = _read(path, line + '\n{"user": "a", "n": 1}\n')
        assert table.report["lines left out: not a JSON object"] == 1
    # Shallow enough to be parsed, and too deep for whoever would print it.
    for depth in range(900, 1000, 7):
        nested = f'{{"user": {"[" * depth}{"]" * depth}, "n": 1}}\n'
        expected = "'user' must be text or a number, got a list"
        assert _refusal(path, nested) in (
            f", line 1: {expected}",
            ", line 1: not a JSON object",
        )


def test_bad_rows_take_no_memory(tmp_path):
    tracemalloc.start()
    with pytest.raises(UserError, match="line 1: not a JSON object; nor is any other line good"):
        _read(tmp_path / "t.jsonl", "x\n" * 50_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20


def test_a_header_of_any_size_is_shown_in_one_line(tmp_path):
    names = ["\x1b[2J\x07\u202ebad", "x" * 10**5, *map(str, range(100))]
    expected = ": there is no column 'user'; the columns are \\x1b[2J\\x07\\u202ebad, "
    shown = f"{expected}{'x' * 60}..., {', '.join(map(str, range(18)))} and 82 more"
    user = Column("user")
    header = f"--header=user{',-' * 12},... with 102 names (in the file's order)"
    data = f"; the first line looks like data: give {header}"
    assert _refusal(tmp_path / "t.csv", ",".join(names) + "\na,b\n", user) == shown + data
    names[1] *= 100
    refusal = _refusal(tmp_path / "t.jsonl", json.dumps(dict.fromkeys(names, 1)) + "\n", user)
    assert refusal == f", line 1{shown}"


def test_one_thing_is_no_plural(tmp_path):
    with pytest.raises(UserError, match="the first is line 2: 1 row with an unreadable 'n'$"):
        _read(tmp_path / "t.csv", "user,n\na,b\n")
    path = tmp_path / "r.csv"
    path.write_text("user,item,rating\na,b,3\n")
    assert read_ratings(path).summary() == "r: 1 rating of 1 user, 1 item"


# Forty people, whom pandas takes for one.
_NAMES = {
    "a NUL character": [f"x\0{i}" for i in range(40)],
    "not UTF-8": [chr(0xD800 + i) for i in range(40)],
}


@pytest.mark.parametrize("why", _NAMES)
@pytest.mark.parametrize("column", ["user", "text", "context"])
def test_names_that_would_become_one_are_left_out(tmp_path, why, column):
    path = tmp_path / "t.jsonl"
    good = [
        {"user": "good", "text": "one more text. and one", "context": c, "item": c, "rating": 1}
        for c in "cd"
    ]
    bad = [{**good[0], column: name} for name in _NAMES[why]]

    def write(rows):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    readers = [functools.partial(read_documents, num_labels=9, min_texts=1), read_utterances]
    readers += [read_text] * (column != "context")  # It does not ask for contexts.
    write([good[0], *bad, good[1]])
    for read in readers:
        assert read(path).client_ids.tolist() == ["good"]
        assert read(path).report == {f"lines left out: {why} (the first: line 2)": 40}
    if column == "user":
        with pytest.raises(UserError, match=f"t.jsonl, line 2: {why}$"):
            read_ratings(path)
    write(bad)
    for read in readers:
        expected = f"no row can be used, the first is line 1: 40 lines left out: {why} "
        with pytest.raises(UserError, match=expected):
            read(path)

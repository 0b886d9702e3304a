"""Rows that a parser, pandas or a terminal would take for something else."""

from __future__ import annotations

import functools
import json
import tracemalloc

import numpy as np
import pytest

from fedpersonal.data.documents import read_documents
from fedpersonal.data.ratings import read_ratings
from fedpersonal.data.rows import Column
from fedpersonal.data.sentences import read_text
from fedpersonal.data.tables import read_table
from fedpersonal.data.utterances import read_utterances
from fedpersonal.errors import UserError

_COLUMNS = (Column("user"), Column("n", "real"))


def _read(path, content, *columns, bad_rows="count"):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(path, columns or _COLUMNS, bad_rows=bad_rows)


def _refused(path, content, *columns):
    with pytest.raises(UserError) as caught:
        _read(path, content, *columns, bad_rows="refuse")
    said = str(caught.value)
    assert said.startswith(str(path)) and said.isprintable() and len(said) < 3000
    return said[len(str(path)) :]


def _lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# Forty people, whom pandas takes for one.
_NAMES = {"NUL": [f"x\0{i}" for i in range(40)], "surrogates": [chr(0xD800 + i) for i in range(40)]}
_WHY = {"NUL": "a NUL character", "surrogates": "not UTF-8"}
_TEXT = {"text": "one more text. and one", "context": "c"}


@pytest.mark.parametrize("kind", _NAMES)
def test_people_who_would_become_one_are_refused(tmp_path, kind):
    path = tmp_path / "t.jsonl"
    rows = [{"user": name, "item": "i", "rating": 1} for name in _NAMES[kind]]
    path.write_text(_lines([{**rows[0], "user": "fine"}, *rows]))
    with pytest.raises(UserError, match=f"t.jsonl, line 2: {_WHY[kind]}$"):
        read_ratings(path)


@pytest.mark.parametrize("kind", _NAMES)
@pytest.mark.parametrize("column", ["user", "text", "context"])
def test_texts_that_would_become_one_are_left_out(tmp_path, kind, column):
    path = tmp_path / "t.jsonl"
    fine = [{"user": "fine", **_TEXT}, {"user": "fine", **_TEXT, "context": "d"}]
    path.write_text(_lines([fine[0], *({**fine[0], column: n} for n in _NAMES[kind]), fine[1]]))
    count = {f"lines left out: {_WHY[kind]} (the first: line 2)": 40}
    readers = [functools.partial(read_documents, num_labels=9, min_texts=1), read_utterances]
    readers += [read_text] * (column != "context")  # It does not ask for contexts.
    for read in readers:
        assert read(path).client_ids.tolist() == ["fine"] and read(path).report == count
    path.write_text(_lines({**fine[0], column: name} for name in _NAMES[kind]))
    expected = f"no row can be used, the first is line 1: 40 lines left out: {_WHY[kind]} "
    for read in readers:
        with pytest.raises(UserError, match=expected):
            read(path)


def test_a_table_of_another_form_is_told_which(tmp_path):
    said = _refused(tmp_path / "t.csv", "user;n\na;3\n")
    assert said == (
        ": there is no column 'user'; the columns are user;n; the header has semicolons: "
        ".csv needs commas, .tsv tabs"
    )
    assert "; the header has tabs: .csv" in _refused(tmp_path / "t.csv", "user\tn\na\t3\n")
    rows = [{"user": "a", "n": 3}] * 2
    for content in (json.dumps(rows), json.dumps(rows, indent=1)):
        said = _refused(tmp_path / "t.jsonl", content)
        assert said.endswith("object, but a list or its start; each line must be an object")
    long = f"user,n\n{'a' * (1 << 18)},3\n"
    assert _refused(tmp_path / "t.csv", long) == ", line 2: a text of more than 131,072 characters"


def test_one_thing_is_no_plural(tmp_path):
    table = _read(tmp_path / "t.csv", "user,n\na,3\na,b\n")
    assert table.report["rows with an unreadable 'n'"] == 1
    with pytest.raises(UserError, match="the first is line 2: 1 row with an unreadable 'n'$"):
        _read(tmp_path / "t.csv", "user,n\na,b\n")
    path = tmp_path / "r.csv"
    path.write_text("user,item,rating\na,b,3\n")
    assert read_ratings(path).summary() == "r: 1 rating of 1 user, 1 item"


def test_a_number_does_not_end_at_a_nul(tmp_path):
    assert _refused(tmp_path / "t.csv", "user,n\na,3\na,3\x007\n") == ", line 3: a NUL character"
    times = (Column("user"), Column("time", "time"))
    content = "user,time\na,3\na,3\x007\n"
    assert _refused(tmp_path / "t.csv", content, *times) == ", line 3: a NUL character"
    assert _read(tmp_path / "t.csv", content, *times).order("time").tolist() == [3]


def test_deep_nesting(tmp_path):
    path = tmp_path / "t.jsonl"
    for line in ("[" * 200_000, '{"user":' * 200_000, '{"user": ' + "[" * 200_000):
        assert _refused(path, line + "\n").startswith(", line 1: not a JSON object")
        table = _read(path, line + '\n{"user": "a", "n": 1}\n')
        assert table.report["lines left out: not a JSON object"] == 1
    # Shallow enough to be parsed, and too deep for whoever would print it.
    for depth in range(900, 1000, 7):
        nested = f'{{"user": {"[" * depth}{"]" * depth}, "n": 1}}\n'
        said = _refused(path, nested)
        expected = "'user' must be text or a number, got a list"
        assert said in (f", line 1: {expected}", ", line 1: not a JSON object")


def test_numbers_of_many_digits(tmp_path):
    path, digits = tmp_path / "t.jsonl", "9" * 5000
    said = _refused(path, f'{{"user": "a", "n": {digits}}}\n')
    assert said == f", line 1: 'n' is not a finite number: '{'9' * 60}'..."
    names = [digits, digits[:-1] + "8", "0.12345678901234567", "0.123456789012345678", "1.50"]
    table = _read(path, "".join(f'{{"user": {name}, "n": 1}}\n' for name in names))
    assert table.columns["user"].tolist() == names  # As many people as there were.


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"user": "a", "n": 1, "user": "b"}', "two values of 'user'"),
        ('{"user": "a", "n": NaN}', "'n' is not a finite number: 'nan'"),
        ('{"user": "a", "n": -Infinity}', "'n' is not a finite number: '-inf'"),
        ('{"user": NaN, "n": 1}', "'user' must be text or a number, got NaN"),
        ('{"user": {"a": 1}, "n": 1}', "'user' must be text or a number, got an object"),
        ('{"user": "a", "n": {"user": 1, "user": 2}}', "'n' must be text or a number, got an obj"),
    ],
)
def test_values_that_json_does_not_mean(tmp_path, row, said):
    assert _refused(tmp_path / "t.jsonl", row + "\n").startswith(f", line 1: {said}")
    table = _read(tmp_path / "t.jsonl", row + '\n{"user": "b", "n": 2, "x": 1, "x": [NaN]}\n')
    assert table.columns["user"].tolist() == ["b"] and sum(table.report.values()) == 1


def test_what_depends_on_the_clock_is_no_time(tmp_path):
    content = "user,time\na,now\na,today\na,2020-01-01\na,NaT\n"
    table = _read(tmp_path / "t.csv", content, Column("user"), Column("time", "time"))
    assert table.order("time").tolist() == [1577836800]
    assert table.report["rows with an unreadable 'time'"] == 3


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks(tmp_path, end, mark):
    rows = {
        "t.csv": ["user,n", '"a', 'b",1', "", "c,2", "d,x"],
        "t.tsv": ["user\tn", '"a', 'b"\t1', "", "c\t2", "d\tx"],
    }
    for name, written in rows.items():
        content = mark + end.join(written) + end
        assert _refused(tmp_path / name, content) == ", line 6: 'n' is not a finite number: 'x'"
        assert _read(tmp_path / name, content).columns["user"].tolist() == [f"a{end}b", "c"]
    written = ['{"user": "a\\nb", "n": 1}', "", '{"user": "c", "n": 2}', "{", ""]
    content = mark + end.join(written)
    assert _refused(tmp_path / "t.jsonl", content) == ", line 4: not a JSON object"
    table = _read(tmp_path / "t.jsonl", content)
    assert table.columns["user"].tolist() == ["a\nb", "c"]
    assert np.array_equal(table.columns["n"], [1, 2])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_other_encodings_are_refused(tmp_path, encoding, name):
    said = _refused(tmp_path / name, '{"user":1,"n":2}\n{"user":1,"n":2}\n'.encode(encoding))
    assert said in (", line 1: not UTF-8", ", line 1: not a JSON object")


def test_bad_rows_take_no_memory(tmp_path):
    tracemalloc.start()
    with pytest.raises(UserError, match="line 1: not a JSON object; nor is any other line good"):
        _read(tmp_path / "t.jsonl", "x\n" * 50_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20


def test_a_header_of_any_size_is_told_in_one_line(tmp_path):
    names = ["\x1b[2J\x07\u202ebad", "x" * 10**5, *map(str, range(100))]
    expected = ": there is no column 'user'; the columns are \\x1b[2J\\x07\\u202ebad, "
    shown = f"{expected}{'x' * 60}..., {', '.join(map(str, range(18)))} and 82 more"
    assert _refused(tmp_path / "t.csv", ",".join(names) + "\na,b\n") == shown
    names[1] *= 100
    said = _refused(tmp_path / "t.jsonl", json.dumps(dict.fromkeys(names, 1)) + "\n")
    assert said == f", line 1{shown}"


def test_what_is_quoted_is_short_and_escaped(tmp_path):
    said = _refused(tmp_path / "t.csv", "user,n\na," + "\x1b]0;x\x07" * 9999 + "\n")
    assert said == ", line 2: 'n' is not a finite number: '" + "\\x1b]0;x\\x07" * 10 + "'..."

"""Files that would be read forever, or fill the memory, are refused at once in one line."""

from __future__ import annotations

import gzip
import os
import zlib

import pytest

from fedpersonal.data import rows as lines
from fedpersonal.data.formats import Column
from fedpersonal.data.rows import MAX_ROW_LENGTH
from fedpersonal.data.tables import read_table
from fedpersonal.errors import UserError
from fedpersonal.suite.readers.sentences import read_text

_USER = (Column("user"),)


def _message(path, columns=_USER, **options):
    with pytest.raises(UserError) as caught:
        read_table(path, columns, bad_rows="count", **options)
    said = str(caught.value)
    assert said.startswith(str(path)) and "\n" not in said
    return said[len(str(path)) :]


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl.gz"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    expected = ": cannot be read: it is not a regular file"
    assert _message(path) == expected
    with pytest.raises(UserError, match=expected):
        read_text(path, cache_dir=tmp_path / "cache")


def test_a_device_is_not_read(tmp_path):
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    assert _message(tmp_path / "zero.csv") == ": cannot be read: it is not a regular file"


@pytest.mark.parametrize(
    ("name", "start", "line"),
    [
        ("t.csv", b"user,text\na,b\n", 3),
        ("t.csv", b"", 1),
        ("t.csv", b'user,text\n"a",' + b'"\n",' * 10, 12),
        ("t.jsonl", b'{"user": "a"}\n{"user": "', 2),
    ],
)
def test_an_endless_line_is_not_read_to_its_end(tmp_path, name, start, line):
    path = tmp_path / name
    path.write_bytes(start)
    os.truncate(path, 1 << 40)  # NUL characters up to a terabyte that takes no room.
    said = _message(path)
    assert said == f", line {line}: a row of more than 16,777,216 characters"


def test_the_longest_line_is_read(tmp_path):
    path = tmp_path / "t.jsonl"
    name = "x" * (MAX_ROW_LENGTH - len('{"user": ""}\n'))
    path.write_text(f'{{"user": "{name}"}}\n{{"user": "a"}}\n')
    assert read_table(path, _USER, bad_rows="refuse").columns["user"].tolist() == [name, "a"]
    path.write_text(f'{{"user": "{name}x"}}\n')
    assert _message(path) == ", line 1: a row of more than 16,777,216 characters"


def test_a_row_of_endless_lines_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("user\n" + '"a\n",' * 5_000_000)
    assert ": a row of more than 16,777,216 characters" in _message(path)


@pytest.mark.exhaustive(but=("\\n",))
@pytest.mark.parametrize("block", [b"a,b\n", b"\n", b"\0"])
def test_a_gzip_bomb_is_refused(tmp_path, block):
    path = tmp_path / "bomb.csv.gz"
    packer = zlib.compressobj(9, wbits=31)
    with open(path, "wb") as file:
        file.write(packer.compress(b"user,text\n"))
        for _ in range(24):  # 25 million characters of 25,000 bytes.
            file.write(packer.compress(block * ((1 << 20) // len(block))))
        file.write(packer.flush())
    bomb = ": its text is more than 100 times as long as the gzip file; if that is right, unpack it"
    row = ", line 2: a row of more than 16,777,216 characters"
    assert _message(path).startswith(bomb if b"\n" in block else row)


def test_honest_gzip_files_are_read(tmp_path, monkeypatch):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"user\n" + b"a\n" * 100_000, mtime=0))
    assert os.path.getsize(path) * 100 < 200_000  # A short one may be as dull as it likes.
    assert len(read_table(path, _USER, bad_rows="refuse").lines) == 100_000
    monkeypatch.setattr(lines, "_MIN_EXPANDED", 1000)
    assert "more than 100 times" in _message(path)
    rows = "".join(f"{i * 7919 % 100_003}\n" for i in range(50_000))
    path.write_bytes(gzip.compress(b"user\n" + rows.encode(), mtime=0))
    assert len(read_table(path, _USER, bad_rows="refuse").lines) == 50_000


@pytest.mark.parametrize("place", ["io.TextIOWrapper", "fedpersonal.data.tables.array.array"])
def test_too_little_memory_is_said(tmp_path, monkeypatch, place):
    def fail(*_, **__):
        raise MemoryError

    path = tmp_path / "t.csv"
    path.write_text("user\na\n")
    monkeypatch.setattr(place, fail)
    assert _message(path) == ": cannot be read: there is not enough memory"

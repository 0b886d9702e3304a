from __future__ import annotations

import errno
import io
import json
import os
import stat
import zipfile

import numpy as np
import pytest

from fedpersonal import files
from fedpersonal.errors import UserError


def test_makes_folders_and_replaces_files(tmp_path):
    path = tmp_path / "deep" / "down" / "a.txt"
    files.write_text(path, "é one")
    files.write_text(path, "two")
    assert path.read_text() == "two\n"
    assert os.listdir(path.parent) == ["a.txt"]


def test_a_reader_sees_the_former_file_until_the_end(tmp_path):
    path = tmp_path / "a"
    path.write_text("former")
    with pytest.raises(KeyError), files.atomic_write(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "former"
        raise KeyError
    assert path.read_text() == "former"
    assert os.listdir(tmp_path) == ["a"]


def test_permissions(tmp_path):
    mask = os.umask(0o022)
    try:
        for name, options in (
            ("open", {}),
            ("own", {"permissions": files.OWNER_ONLY}),
        ):
            with files.atomic_write(tmp_path / name, "wb", **options) as file:
                file.write(b"x")
    finally:
        os.umask(mask)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {"open": 0o644, "own": 0o600}


@pytest.mark.parametrize("step", ["write", "fsync", "open", "replace"])
def test_what_the_system_says_against_it_is_one_line(tmp_path, monkeypatch, step):
    path = tmp_path / "a"
    path.write_text("former")

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if step != "write":
        monkeypatch.setattr(os, step, refuse)
    with pytest.raises(UserError, match="a cannot be written: No space left on device"):
        with files.atomic_write(path) as file:
            if step == "write":
                refuse()
            file.write("new")
    assert path.read_text() == "former" and os.listdir(tmp_path) == ["a"]


def test_errors_of_other_files_stay(tmp_path):
    with pytest.raises(FileNotFoundError), files.atomic_write(tmp_path / "a"):
        (tmp_path / "other").read_text()


def test_a_checked_object_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "a.json"
    value = {"b": [1, 0.1, None, "\u00e9\ud800"], "a": {"x": True}}
    files.write_json(path, value, checked=True)
    assert files.read_json(path, {"a": dict, "b": (list, str)}, checked=True) == value
    with pytest.raises(UserError, match="a.json is damaged or was changed"):
        files.read_json(path, {"b": dict}, checked=True)
    text = path.read_text()
    for change in (text.replace("0.1", "0.2"), text.replace("true", "1"), '{"b": 1}', "{}"):
        path.write_text(change)
        with pytest.raises(UserError, match="a.json is damaged or was changed"):
            files.read_json(path, checked=True)
        assert isinstance(files.read_json(path), dict)


def test_what_cannot_be_read_is_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    said = {"pipe": "is damaged or was changed", "none": "cannot be read: No such file or dir"}
    said["."] = "is damaged or was changed"
    for name, message in said.items():
        for read in (files.read_bytes, files.read_text, files.read_json):
            with pytest.raises(UserError) as caught:
                read(tmp_path / name)
            assert str(caught.value).startswith(f"{tmp_path / name} {message}")


def test_csv_and_json(tmp_path):
    files.write_csv(tmp_path / "t.csv", [{"a": 1, "b": "x,y"}, {"b": 2, "a": 3}])
    assert (tmp_path / "t.csv").read_bytes() == b'a,b\n1,"x,y"\n3,2\n'
    with pytest.raises(ValueError, match="c"):
        files.write_csv(tmp_path / "t.csv", [{"a": 1}, {"c": 2}])
    assert (tmp_path / "t.csv").read_bytes() == b'a,b\n1,"x,y"\n3,2\n'
    files.write_json(tmp_path / "t.json", {"path": tmp_path, "set": {2, 1}, 3: (4.0,)})
    expected = {"path": str(tmp_path), "set": [1, 2], "3": [4.0]}
    assert json.loads((tmp_path / "t.json").read_text()) == expected


def test_what_is_nested_too_deeply_for_writing_is_not_read(tmp_path):
    path = tmp_path / "a.json"
    for depth in (99, 100, 480, 960, 970, 980, 2000):
        path.write_text('{"a":' + "[" * depth + "]" * depth + "}")
        if depth < 100:
            files.write_json(path, files.read_json(path), checked=True)
            files.read_json(path, checked=True)
            continue
        for checked in (False, True):
            with pytest.raises(UserError, match="a.json is damaged or was changed"):
                files.read_json(path, checked=checked)


ARRAYS = {
    "a/b": np.array([[1.0, np.nan], [-0.0, np.inf]], np.float32),
    "text": np.array(["x", "\u00e9"]),
    "number": np.array(3, np.int64),
    "none": np.zeros((0, 2), bool),
}


def test_arrays_come_back_to_the_bit():
    content = files.pack_arrays(ARRAYS)
    for found in (files.unpack_arrays(content), dict(np.load(io.BytesIO(content)))):
        assert list(found) == list(ARRAYS)
        for name, array in ARRAYS.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()


def test_any_other_byte_is_noticed():
    content = files.pack_arrays(ARRAYS)
    for place in range(len(content)):
        with pytest.raises(ValueError, match="the digest is another one"):
            files.unpack_arrays(
                content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
            )
        with pytest.raises(ValueError, match="the digest is another one"):
            files.unpack_arrays(content[:place])


def test_what_holds_no_arrays_is_refused():
    """With right digests."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("text", b"hello")
    for content in (b"", file.getvalue()):
        with pytest.raises(ValueError, match="there are"):
            files.unpack_arrays(content + bytes.fromhex(files.digest(content)))


def test_a_digest_of_rows_is_of_all_of_them_in_their_order():
    def digest_of(*rows):
        found = ""
        for row in rows:
            found = files.digest_with_row(found, row)
        return found

    one, two = {"a": "1", "b": ""}, {"b": "2", "a": "3"}
    assert digest_of(one, two) == digest_of({"a": "1"}, {"a": "3", "b": "2"})
    assert len({digest_of(one, two), digest_of(two, one), digest_of(two), digest_of()}) == 4

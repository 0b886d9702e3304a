from __future__ import annotations

import json
import os
import stat

import pytest

from fedpersonal import atomic_files


def test_makes_folders_and_replaces_files(tmp_path):
    path = tmp_path / "deep" / "down" / "a.txt"
    atomic_files.write_text(path, "é one")
    atomic_files.write_text(path, "two")
    assert path.read_text() == "two\n"
    assert os.listdir(path.parent) == ["a.txt"]


def test_a_reader_sees_the_former_file_until_the_end(tmp_path):
    path = tmp_path / "a"
    path.write_text("former")
    with pytest.raises(KeyError), atomic_files.atomic_write(path) as file:
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
            ("own", {"permissions": atomic_files.OWNER_ONLY}),
        ):
            with atomic_files.atomic_write(tmp_path / name, "wb", **options) as file:
                file.write(b"x")
    finally:
        os.umask(mask)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {"open": 0o644, "own": 0o600}


def test_csv_and_json(tmp_path):
    atomic_files.write_csv(tmp_path / "t.csv", [{"a": 1, "b": "x,y"}, {"b": 2, "a": 3}])
    assert (tmp_path / "t.csv").read_bytes() == b'a,b\n1,"x,y"\n3,2\n'
    with pytest.raises(ValueError, match="c"):
        atomic_files.write_csv(tmp_path / "t.csv", [{"a": 1}, {"c": 2}])
    assert (tmp_path / "t.csv").read_bytes() == b'a,b\n1,"x,y"\n3,2\n'
    atomic_files.write_json(tmp_path / "t.json", {"path": tmp_path, "set": {2, 1}, 3: (4.0,)})
    expected = {"path": str(tmp_path), "set": [1, 2], "3": [4.0]}
    assert json.loads((tmp_path / "t.json").read_text()) == expected

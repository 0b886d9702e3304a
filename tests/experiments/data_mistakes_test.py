"""Mistakes in data are told in a line before TensorFlow is imported, which takes seconds."""

from __future__ import annotations

import json
import os

import pytest

_FLAG = {
    "interactions": "--interactions_file",
    "movielens": "--ratings_file",
    "reddit": "--text_file",
    "stackoverflow": "--text_file",
    "tv_shows": "--text_file",
}
# Imports what a binary does, and says whether TensorFlow was among it.
_PROGRAM = """
import importlib, json, sys
from experiments import command, launch

def leave(status):
    heavy = {"tensorflow", "tensorflow_federated", "tensorflow_datasets", "transformers"}
    print(json.dumps([status, sorted(heavy & set(sys.modules))]))
    sys.exit()

command.leave = leave
launch.run(importlib.import_module(f"experiments.{sys.argv.pop(1)}").main)
"""


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    names = ["\x1b[2J", *(f"column {i}" for i in range(10**5))]
    (folder / "header.csv").write_text(",".join(names) + "\na,b\n")
    (folder / "latin.csv").write_bytes(b"user,item,text,context,r\xe9\na,b,c,d,5\n")
    os.mkfifo(folder / "pipe.csv")
    os.mkfifo(folder / "stackoverflow.sqlite")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "stackoverflow.sqlite").write_bytes(b"SQLite format 3\0" + bytes(500))
    return folder


@pytest.mark.parametrize("binary", _FLAG)
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("absent.csv", "absent.csv: no such file"),
        ("pipe.csv", "pipe.csv: cannot be read: it is not a regular file"),
        ("latin.csv", "latin.csv, line 1: not UTF-8"),
        (
            "header.csv",
            "header.csv: there is no column 'user'; the columns are \\x1b[2J, column 0, ",
        ),
    ],
)
def test_a_wrong_table(folder, run_program, binary, file, said):
    _check(folder, run_program, [binary, f"{_FLAG[binary]}={file}"], said)


@pytest.mark.parametrize("binary", _FLAG)
def test_a_wrong_folder(folder, run_program, binary):
    _check(folder, run_program, [binary, "--data_dir=absent"], "absent has no ")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (".", "stackoverflow.sqlite: cannot be read: it is not a regular file"),
        ("damaged", "Stack Overflow cannot be loaded ("),
    ],
)
def test_a_wrong_database(folder, run_program, path, said):
    flags = ["stackoverflow", "--dataset=stack_overflow", f"--data_dir={path}"]
    _check(folder, run_program, flags, said)


def _check(folder, run_program, arguments, said):
    output, errors, _ = run_program("-c", _PROGRAM, *arguments, "--output_dir=out", cwd=folder)
    assert errors.startswith(f"error: {said}") and errors.count("\n") == 1, errors
    assert len(errors) < 500 and errors[:-1].isprintable()
    assert json.loads(output.splitlines()[-1]) == [2, []]
    assert not (folder / "out").exists()

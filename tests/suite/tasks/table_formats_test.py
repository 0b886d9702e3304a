"""Every task reads the same from a table in whatever format its flags describe."""

from __future__ import annotations

import csv

import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.tasks.find import all_tasks
from tests.suite import small
from tests.suite.tasks.users_test import TABLES

_FILE_FLAGS = ("ratings_file", "interactions_file", "text_file")
_OLD = {"quoting": "double", "encoding": "latin-1"}


@pytest.fixture(name="tables", autouse=True)
def _tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small.write_ratings(tmp_path / "ratings.csv", num_users=20)
    small.write_texts(tmp_path / "texts.csv", num_users=20)
    for name in ("ratings", "texts"):
        with open(f"{name}.csv", newline="", encoding="latin-1") as file:
            rows = [[value.replace("u1", "ü1") for value in row] for row in csv.reader(file)]
        with open(f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        with open(f"{name}.txt", "w", newline="", encoding="latin-1") as file:
            csv.writer(file, delimiter="|").writerows(rows[1:])
    (tmp_path / "users.txt").write_text("ü1\nu2\nu3\nu4\nu5\n", encoding="latin-1")


def _read(name, **changes):
    task = all_tasks()[name]
    options = task.with_defaults(task.options(**{**TABLES[name], **changes}))
    return task.read(options)


def _described(name, **changes):
    flag = next(flag for flag in _FILE_FLAGS if flag in TABLES[name])
    stem = TABLES[name][flag].partition(".")[0]
    with open(f"{stem}.csv", encoding="utf-8") as file:
        header = next(csv.reader(file))
    return {flag: f"{stem}.txt", "separator": "pipe", "header": header, **_OLD, **changes}


@pytest.mark.parametrize("name", TABLES)
def test_a_described_table_is_the_same_data(name):
    changes = _described(name)
    assert _read(name, **changes).fingerprint() == _read(name).fingerprint()
    few = _read(name, **changes, users_file="users.txt")
    source = getattr(few, "utterances" if name == "tv_shows" else "corpus", few)
    assert len(source.client_ids) == 5
    with pytest.raises(UserError, match="users.txt, line 1: not utf-8; --encoding says"):
        _read(name, users_file="users.txt").fingerprint()


@pytest.mark.parametrize("name", TABLES)
def test_a_format_without_a_table_is_refused(name):
    without = dict.fromkeys([flag for flag in _FILE_FLAGS if flag in TABLES[name]])
    for option, value in {"separator": "tab", "header": ["user"], "encoding": "latin-1"}.items():
        with pytest.raises(UserError, match=f"--{option} is .*, which has no effect with the data"):
            _read(name, **without, **{option: value}).fingerprint()


_QUOTED_COLONS = {"separator": "::", "quoting": "double"}


@pytest.mark.parametrize("wrong", [{"separator": "commas"}, {"encoding": "utf-9"}, _QUOTED_COLONS])
def test_a_format_of_no_use_is_refused_before_any_reading(wrong):
    for task in (all_tasks()[name] for name in TABLES):
        with pytest.raises(UserError, match="--(separator|encoding|quoting)"):
            task.options(**wrong)

"""Checks of the machine, in worlds where something is wrong."""

from __future__ import annotations

import gzip
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile
import types

import pytest

from experiments.health import machine
from experiments.health.examination import FAILED, OK, WARNING, Asked

GB = 10**9
ASKED = Asked()


@pytest.fixture(name="on_path")
def _on_path(tmp_path, monkeypatch):
    """Puts a program of the system's in the place of another."""

    def on_path(name, line):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return on_path


def test_the_platform(on_path):
    assert machine.check_platform(ASKED).status == OK
    on_path("uname", "[ $1 = -s ] && echo Darwin || echo arm64")
    finding = machine.check_platform(ASKED)
    assert finding.status == FAILED and "this is Darwin on arm64" in finding.what


def test_an_old_c_library(on_path):
    on_path("getconf", "echo glibc 2.28")
    finding = machine.check_platform(ASKED)
    assert finding.status == FAILED and "here is 2.28" in finding.what


def test_another_python(monkeypatch):
    assert machine.check_python(ASKED).status == OK
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    results = [
        subprocess.CompletedProcess([], 0, "/usr/bin/python3.10\n", ""),
        subprocess.CompletedProcess([], 2, "", "fedpersonal needs Python 3.9\n"),
    ]
    monkeypatch.setattr(machine, "_find_python", lambda: results.pop(0))
    finding = machine.check_python(ASKED)
    assert finding.status == FAILED
    assert finding.advice == "type: make install PYTHON=/usr/bin/python3.10"
    assert machine.check_python(ASKED).advice == "fedpersonal needs Python 3.9"


@pytest.fixture(name="checkout")
def _checkout(tmp_path, monkeypatch):
    """A checkout with a lock, and a virtual environment that is this Python's."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    (tmp_path / ".venv").mkdir()
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "lock.txt").write_text("a==1\n")
    return tmp_path


def test_the_virtual_environment(checkout, monkeypatch):
    finding = machine.check_environment(ASKED)
    assert (finding.status, finding.advice) == (FAILED, "type: make install")
    (checkout / ".venv" / "installed").write_text("a==0\n")
    finding = machine.check_environment(ASKED)
    assert finding.status == WARNING and "another lock" in finding.what
    (checkout / ".venv" / "installed").write_text("a==1\n")
    assert machine.check_environment(ASKED).status == OK
    monkeypatch.setattr(sys, "prefix", "/usr")
    finding = machine.check_environment(ASKED)
    assert finding.status == WARNING and "that of /usr" in finding.what


@pytest.mark.parametrize(
    ("installed", "status", "what"),
    [
        ({"a.b": "1", "c": "2"}, OK, "2 in the versions of the lock"),
        ({"a.b": "1", "c": "3"}, WARNING, "c 3 (2)"),
        ({"c": "3"}, FAILED, "of 2, missing: a.b"),
    ],
)
def test_packages(checkout, monkeypatch, installed, status, what):
    (checkout / "requirements" / "lock.txt").write_text(
        "# made by\na.b==1 \\\n    --hash=sha256:0\n    # via c\n"
        "c==2 ; python_full_version >= '3.9' \\\n    --hash=sha256:1\n"
        "c==9 ; python_full_version < '3.9' \\\n    --hash=sha256:1\n"
    )

    def version(package):
        if package not in installed:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    finding = machine.check_packages(ASKED)
    assert finding.status == status and what in finding.what
    assert bool(finding.advice) == (status != OK)


def test_the_lock_of_clusters_counts_where_ray_is(checkout, monkeypatch):
    (checkout / "requirements" / "cluster_lock.txt").write_text("ray==2\na==2 \\\n")
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "2")
    assert machine.check_packages(ASKED).status == OK


def test_every_package_of_the_lock_is_looked_for():
    text = (machine.ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line[:1] not in ("#", " ", "")]
    assert len(machine._PINNED.findall(text)) == len(lines) > 100


@pytest.mark.parametrize(
    ("affinity", "quota", "what"),
    [
        (8, "max 100000", "8 of 8: 8 shards"),
        (2, "max 100000", "2 of 8 (limited by affinity): 2 shards"),
        (8, "150000 100000", "2 of 8 (limited by the quota of a container): 2 shards"),
    ],
)
def test_processors(monkeypatch, tmp_path, affinity, quota, what):
    from fedpersonal.runtime import processors

    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(processors, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    finding = machine.check_processors(ASKED)
    assert finding.status == OK and finding.what.startswith(what)


@pytest.mark.parametrize(
    ("free", "status", "what"),
    [
        (22 * GB, OK, "22.0 GB free: up to 2 GB of global variables in 4 shards"),
        (1.5 * GB, WARNING, "1.5 GB free: up to 0.14 GB"),
        (0.5 * GB, FAILED, "0.5 GB free; a small run takes 1 GB"),
    ],
)
def test_memory(monkeypatch, free, status, what):
    from fedpersonal.process import memory
    from fedpersonal.runtime import processors

    monkeypatch.setattr(memory, "free_bytes", lambda: int(free))
    monkeypatch.setattr(processors, "count_processors", lambda: 4)
    finding = machine.check_memory(ASKED)
    assert finding.status == status and finding.what.startswith(what)


def test_the_output_folder_need_not_be_there_and_is_not_made(tmp_path):
    folder = tmp_path / "not" / "yet"
    finding = machine.check_output(Asked(str(folder)))
    assert finding.status in (OK, WARNING) and str(folder) in finding.what
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free", "status"), [(3 * GB, OK), (1 * GB, WARNING), (GB // 100, FAILED)])
def test_room_on_the_disk(tmp_path, monkeypatch, free, status):
    usage = types.SimpleNamespace(free=free)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage)
    finding = machine.check_output(Asked(str(tmp_path)))
    assert finding.status == status and bool(finding.advice) == (status != OK)


def test_folders_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    finding = machine.check_output(Asked(str(tmp_path / "file" / "results")))
    assert finding.status == FAILED and "Not a directory" in finding.what

    def no_locks(*_):
        raise OSError(37, "No locks available")

    with monkeypatch.context() as world:
        world.setattr(machine.fcntl, "lockf", no_locks)
        finding = machine.check_temporary(ASKED)
    assert finding.status == FAILED and "No locks available" in finding.what

    def nowhere():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    finding = machine.check_temporary(ASKED)
    assert finding.status == FAILED and "No usable" in finding.what and "TMPDIR" in finding.advice


def of_texts(command, data_dir):
    (check,) = [c for c in machine.CHECKS if c.name == f"texts of {command}"]
    return check.find(Asked(data_dir=None if data_dir is None else str(data_dir)))


@pytest.mark.parametrize("command", ["stackoverflow", "reddit", "tv_shows"])
def test_texts_that_are_not_there(tmp_path, command):
    assert of_texts(command, None).status == OK
    assert of_texts(command, tmp_path / "none").status == FAILED
    finding = of_texts(command, tmp_path)
    assert finding.status == WARNING and ".jsonl.gz or " in finding.what


def test_texts_that_are_there_and_damaged(tmp_path):
    path = tmp_path / "reddit_comments.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n"))
    finding = of_texts("reddit", tmp_path)
    assert finding.status == OK and "make table3" in finding.what
    for content, reason in ((b"{}\n", "gzip"), (b"", "empty"), (gzip.compress(b"x")[:12], "end")):
        path.write_bytes(content)
        finding = of_texts("reddit", tmp_path)
        assert finding.status == FAILED and reason in finding.what, finding


def test_ratings(tmp_path, monkeypatch):
    assert "100,000 ratings" in machine.check_ratings(ASKED).what
    asked = Asked(data_dir=str(tmp_path))
    assert machine.check_ratings(asked).status == WARNING
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ratings.dat").write_text("1::1::5::0\n")
    finding = machine.check_ratings(asked)
    assert finding.status == OK and "ml-1m/ratings.dat" in finding.what


def test_the_root_is_the_checkout():
    assert (machine.ROOT / "experiments" / "doctor.py").samefile(
        pathlib.Path(machine.__file__).parents[1] / "doctor.py"
    )

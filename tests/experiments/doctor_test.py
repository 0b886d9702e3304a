"""The doctor: once for real, where nothing is installed, and in worlds where something is wrong."""

from __future__ import annotations

import faulthandler
import importlib.metadata
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import types

import psutil
import pytest

from experiments import doctor
from experiments.doctor import FAILED, OK, WARNING

GB = 10**9
NAMES = """
Python, packages, processors, memory, output folder, temporary folder,
data of movielens, data of stackoverflow, data of reddit, data of tv_shows,
import, local plain, local compiled, ray
"""


def test_all_checks_of_this_machine(run_program, tmp_path):
    output, errors, status = run_program("-m", "experiments.doctor", "--json", cwd=tmp_path)
    found = json.loads(output)
    entries = {entry["check"]: entry for entry in found["checks"]}
    assert ", ".join(entries) == " ".join(NAMES.split())
    assert all(e["status"] in (OK, WARNING, FAILED) and e["what"] for e in entries.values())
    count = sum(entry["status"] == FAILED for entry in entries.values())
    assert (found["failed"], status, errors) == (count, int(count > 0), "")
    # What any machine that runs the tests has.
    for name in ("Python", "data of reddit", "import", "local plain", "local compiled"):
        assert entries[name]["status"] == OK, entries[name]
    assert list(tmp_path.iterdir()) == []


def test_without_packages_there_are_lines_and_no_traceback(run_program, tmp_path):
    # `-S`: without site-packages.
    program = (
        f"import runpy, sys; sys.path[:0] = [{os.getcwd()!r}]; sys.argv = ['doctor']; "
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; "
        "from experiments import doctor; "
        "doctor._PYTHON = [sys.executable, '-S']; sys.exit(doctor.main())"
    )
    output, errors, status = run_program("-S", "-c", program, cwd=tmp_path)
    *lines, last = output.splitlines()
    assert (len(lines), errors, status) == (14, "", 1)
    assert all(line.split()[0] in (OK, WARNING, FAILED) for line in lines)
    assert "failed   packages: ModuleNotFoundError" in output and "type: make install" in output
    assert last.startswith("14 checks: ")


def test_ctrl_c_ends_all_of_it_at_once(start_program, tmp_path):
    with start_program("-m", "experiments.doctor", cwd=tmp_path) as process:
        while not process.stdout.readline().startswith("ok       data of tv_shows"):
            pass
        while not psutil.Process(process.pid).children():
            time.sleep(0.01)
        (child,) = psutil.Process(process.pid).children()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert not child.is_running() and process.stderr.read() == ""


def test_a_mistake_is_one_line(run_program, tmp_path):
    output, errors, status = run_program("-m", "experiments.doctor", "--jsno", cwd=tmp_path)
    assert (output, errors, status) == ("", "error: unrecognized arguments: --jsno\n", 2)


@pytest.mark.parametrize(
    ("ending", "what", "advice"),
    [
        ("time.sleep(600)", "it hangs: no answer within 2 s", ""),
        ("os.kill(os.getpid(), signal.SIGILL)", "was ended by signal SIGILL: the reason", "AVX"),
        ("os._exit(3)", "Python was ended with status 3: the reason", ""),
    ],
)
def test_what_ends_the_computing_process_is_found(monkeypatch, ending, what, advice):
    program = (
        "import os, signal, time\n"
        """print('[["ok", "imported", ""], 1.5]\\nthe reason', flush=True)\n"""
        f"{ending}\n"
    )
    monkeypatch.setattr(doctor, "_PROGRAM", program)
    faulthandler.disable()  # pytest's, which would have the last word.
    (_, first, took), (_, ill, _), *others = doctor._examine_computing(2)
    assert (first, took) == ((OK, "imported", ""), 1.5)
    assert ill.status == FAILED and what in ill.what and advice in ill.advice
    assert {finding.what for _, finding, _ in others} == {
        "not tried, as the check before it failed"
    }


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (ImportError("no x"), "ImportError: no x"),
        (SystemExit("so\n long"), "SystemExit: so long"),
    ],
)
def test_whatever_a_check_raises_is_a_finding(error, what):
    def check():
        raise error

    finding, _ = doctor._timed(check)
    assert (finding.status, finding.what) == (FAILED, what)


def test_a_wrong_sum_and_work_that_is_not_compiled(monkeypatch):
    from fedpersonal import runtime

    assert doctor._compute("local").status == OK
    finding = doctor._compute("local, compiled on the moon")
    assert finding.status == FAILED and "--nocompile" in finding.advice
    monkeypatch.setattr(doctor, "_NUMBERS", [1.0, 2.0, 4.0])
    assert "21, not 14" in doctor._compute("local").what
    runtime.use_runtime("local")


@pytest.mark.parametrize(
    ("installed", "status", "what"),
    [
        ({"A_b": "1", "c": "2"}, OK, "2 in the versions of the lock"),
        ({"a.b": "1", "c": "3"}, WARNING, "in other versions than the lock's: c"),
        ({"c": "3"}, FAILED, "of 2, missing: a.b"),
    ],
)
def test_packages(tmp_path, monkeypatch, installed, status, what):
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "lock.txt").write_text(
        "# made by\na.b==1 \\\n    --hash=sha256:0\n    # via c\n"
        "c==2 ; python_full_version >= '3.9' \\\n    --hash=sha256:1\n"
        "c==9 ; python_full_version < '3.9' \\\n    --hash=sha256:1\n"
    )
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    found = [
        types.SimpleNamespace(metadata={"Name": name}, version=version)
        for name, version in installed.items()
    ]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    finding = doctor.check_packages()
    assert finding.status == status and what in finding.what


def test_every_package_of_the_lock_is_looked_for():
    text = (doctor.ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line[:1] not in ("#", " ", "")]
    assert len(doctor._PINNED.findall(text)) == len(lines) > 100


@pytest.mark.parametrize(
    ("version", "script", "advice"),
    [
        ((3, 12, 1), "echo /usr/bin/python3.10", "type: make install PYTHON=/usr/bin/python3.10"),
        ((3, 12, 1), "echo needs Python 3.9 >&2; exit 2", "needs Python 3.9"),
        ((3, 11, 7), "echo needs Linux, not Darwin >&2; exit 2", "needs Linux, not Darwin"),
    ],
)
def test_another_python_or_system(tmp_path, monkeypatch, version, script, advice):
    (tmp_path / "scripts").mkdir()
    program = tmp_path / "scripts" / "find_python.sh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "version_info", version)
    finding = doctor.check_python()
    assert (finding.status, finding.advice) == (FAILED, advice)


def test_processors(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert doctor.check_processors().what.startswith("2 of 8 (by affinity, or the quota of a ")


@pytest.mark.parametrize(
    ("free", "status", "what"),
    [
        (22 * GB, OK, "22.0 GB free: up to 2 GB of global variables in 4 shards"),
        (1.5 * GB, WARNING, "1.5 GB free: up to 0.14 GB"),
        (0.5 * GB, FAILED, "0.5 GB free; a small run takes 1 GB"),
    ],
)
def test_memory(monkeypatch, free, status, what):
    from fedpersonal.federated import memory
    from fedpersonal.runtime import processors

    monkeypatch.setattr(memory, "free_bytes", lambda: int(free))
    monkeypatch.setattr(processors, "count_processors", lambda: 4)
    finding = doctor.check_memory()
    assert finding.status == status and finding.what.startswith(what)


@pytest.mark.parametrize(("free", "status"), [(1 * GB, OK), (GB // 100, FAILED)])
def test_room_on_the_disk(tmp_path, monkeypatch, free, status):
    usage = types.SimpleNamespace(free=free)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    finding = doctor.check_room(str(tmp_path / "not" / "yet"), "go")
    assert finding.status == status and bool(finding.advice) == (status != OK)
    assert list(tmp_path.iterdir()) == []


def test_folders_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    finding = doctor.check_room(str(tmp_path / "file" / "results"), "go")
    assert finding.status == FAILED and "Not a directory" in finding.what

    def no_locks(*_):
        raise OSError(37, "No locks available")

    with monkeypatch.context() as world:
        world.setattr(doctor.fcntl, "lockf", no_locks)
        finding = doctor.check_temporary()
    assert finding.status == FAILED and "No locks available" in finding.what

    def nowhere():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    assert "No usable" in doctor.check_temporary().what


@pytest.mark.parametrize("command", sorted(doctor._DATA))
def test_data_that_are_there_or_not(tmp_path, command):
    def check(folder):
        return doctor.check_data(doctor._DATA[command], str(folder))

    assert "is not a folder" in check(tmp_path / "none").what
    finding = check(tmp_path)
    assert finding.status == WARNING
    path = pathlib.Path(tmp_path, finding.what.split(" has no ")[1].split(" or ")[0])
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert check(tmp_path).advice == "get the file again"
    path.write_text("1")
    assert check(tmp_path)[:2] == (OK, f"{tmp_path} has {path.relative_to(tmp_path)}")

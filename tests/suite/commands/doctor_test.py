"""The doctor: once for real, where nothing is installed, and in worlds where something is wrong."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import signal
import sys
import tempfile
import time
import types

import psutil
import pytest

from fedpersonal.suite.commands import doctor
from fedpersonal.suite.commands.doctor import FAILED, OK, WARNING

GB = 10**9
NAMES = """
Python, packages, memory, output folder, temporary folder, data of movielens, data of stackoverflow,
data of reddit, data of tv_shows, runtime local, runtime ray
"""


@pytest.mark.exhaustive
def test_all_checks_of_this_machine(run_program, tmp_path):
    output, errors, status = run_program("-m", "experiments.doctor", cwd=tmp_path)
    *lines, last = output.splitlines()
    found = {line[9:].partition(": ")[0]: line.split()[0] for line in lines}
    assert ", ".join(found) == " ".join(NAMES.split())
    count = sum(status == FAILED for status in found.values())
    assert (errors, status) == ("", int(count > 0))
    assert last.startswith(f"11 checks: {count} failed, ")
    # What any machine that runs the tests has.
    assert {found[name] for name in ("Python", "data of reddit", "runtime local")} == {OK}
    assert list(tmp_path.iterdir()) == []


def test_without_packages_there_are_lines_and_no_traceback(run_program, tmp_path):
    # `-S`: without site-packages.
    program = (
        f"import sys; sys.path[:0] = [{os.getcwd()!r}]; sys.argv = ['doctor']; "
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; "
        "from fedpersonal.suite.commands import doctor; "
        "doctor._PYTHON = [sys.executable, '-S']; sys.exit(doctor.main())"
    )
    output, errors, status = run_program("-S", "-c", program, cwd=tmp_path)
    assert (len(output.splitlines()), errors, status) == (12, "", 1)
    assert "failed   packages: ModuleNotFoundError" in output and "type: make install" in output
    assert "failed   runtime local: Python ended with status 1: ModuleNotFound" in output


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
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        assert process.stderr.read() == ""


def test_a_mistake_is_one_line(run_program, tmp_path):
    output, errors, status = run_program("-m", "experiments.doctor", "--jsno", cwd=tmp_path)
    assert (output, errors, status) == ("", "error: unrecognized arguments: --jsno\n", 2)


@pytest.mark.parametrize(
    ("ending", "what", "advice"),
    [
        ("import time; time.sleep(600)", "it hangs: no result within 1 s", ""),
        ("import os; os.kill(os.getpid(), 4)", "Python ended by signal SIGILL: the reason", "AVX"),
        ("import os; os._exit(3)", "Python ended with status 3: the reason", ""),
    ],
)
def test_what_ends_the_computing_process_is_found(monkeypatch, ending, what, advice):
    program = f"print('the reason', flush=True); {ending}"
    monkeypatch.setattr(doctor, "_PYTHON", [sys.executable, "-c", program])
    monkeypatch.setattr(doctor, "_SECONDS_TO_COMPUTE", 1.0)
    finding = doctor.check_computing("local")
    assert finding.status == FAILED and what in finding.description and advice in finding.advice


@pytest.mark.parametrize("error", [ImportError("no\n x"), SystemExit("no\n x")])
def test_whatever_a_check_raises_is_a_finding(error):
    def check():
        raise error

    assert doctor.run_check(check)[:2] == (FAILED, f"{type(error).__name__}: no x")


def write_find_python(folder, monkeypatch, script):
    (folder / "scripts").mkdir()
    program = folder / "scripts" / "find_python.sh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(doctor, "ROOT", folder)


@pytest.mark.parametrize(
    ("installed", "status", "what"),
    [
        ({"A_b": "1", "c": "2"}, OK, "2 of the stack STACK, in the versions of LOCK, in"),
        ({"a.b": "1", "c": "3"}, WARNING, "2 of the stack STACK, in other versions than LOCK's: c"),
        ({"c": "3"}, FAILED, "of 2 of the stack STACK, missing: a.b"),
    ],
)
@pytest.mark.parametrize(
    ("module", "script", "stack", "lock"),
    [
        ("tensorflow_federated", "", "tff", "lock.txt"),
        ("federated_language", "", "today", "today.txt"),
        (None, 'echo today "$PYTHON"', "today", "today.txt"),
        (None, "exit 2", "tff", "lock.txt"),
    ],
)
def test_packages(tmp_path, monkeypatch, installed, status, what, module, script, stack, lock):
    write_find_python(tmp_path, monkeypatch, script)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / lock).write_text(
        "# made by\na.b==1 \\\n    --hash=sha256:0\n    # via c\n"
        "c==2 ; python_full_version >= '3.9' \\\n    --hash=sha256:1\n"
        "c==9 ; python_full_version < '3.9' \\\n    --hash=sha256:1\n"
    )
    found = [
        types.SimpleNamespace(metadata={"Name": name}, version=version)
        for name, version in installed.items()
    ]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name == module or None)
    finding = doctor.check_packages()
    wanted = what.replace("STACK", stack).replace("LOCK", lock)
    assert finding.status == status and finding.description.startswith(wanted)


@pytest.mark.parametrize("names", [names for _, *names in doctor._STACKS.values()])
def test_every_package_of_the_locks_is_looked_for(names):
    texts = [(doctor.ROOT / "requirements" / n).read_text(encoding="utf-8") for n in names]
    lines = [t for t in "\n".join(texts).splitlines() if t[:1] not in ("#", " ", "")]
    assert len(doctor._PINNED.findall("\n".join(texts))) == len(lines) > 100


@pytest.mark.parametrize(
    ("script", "status", "advice"),
    [
        ('echo today "$PYTHON"', OK, ""),
        (
            '[ -z "$PYTHON" ] && echo tff /usr/bin/python3.10',
            FAILED,
            "type: make install PYTHON=/usr/bin/python3.10",
        ),
        ("echo needs Python 3.9 to 3.13 >&2; exit 2", FAILED, "needs Python 3.9 to 3.13"),
    ],
)
def test_this_python_or_another_or_none(tmp_path, monkeypatch, script, status, advice):
    monkeypatch.delenv("PYTHON", raising=False)
    write_find_python(tmp_path, monkeypatch, script)
    finding = doctor.check_python()
    assert (finding.status, finding.advice) == (status, advice)


@pytest.mark.parametrize(
    ("free", "status", "what"),
    [
        (22 * GB, OK, "22.0 GB free: up to 2 GB of global variables on 4 processors"),
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
    assert finding.status == status and finding.description.startswith(what)


def test_folders(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    finding = doctor.check_folder(str(tmp_path / "file" / "results"))
    assert finding.status == FAILED and "Not a directory" in finding.description
    for free, status in ((1 * GB, OK), (GB // 100, FAILED)):
        usage = types.SimpleNamespace(free=free)
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path, usage=usage: usage)
        finding = doctor.check_folder(str(tmp_path / "not" / "yet"))
        assert finding.status == status and bool(finding.advice) == (status != OK)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def nowhere():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    assert "No usable" in doctor.check_folder(None).description


@pytest.mark.parametrize("command", sorted(doctor._DATA))
def test_data_that_are_there_or_not(tmp_path, command):
    def check(folder):
        return doctor.check_data(doctor._DATA[command], str(folder))

    assert "is not a folder" in check(tmp_path / "none").description
    finding = check(tmp_path)
    assert finding.status == WARNING
    path = pathlib.Path(tmp_path, finding.description.split(" has no ")[1].split(" or ")[0])
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert check(tmp_path).advice == "get the file again"
    path.write_text("1")
    assert check(tmp_path)[:2] == (OK, f"{tmp_path} has {path.relative_to(tmp_path)}")

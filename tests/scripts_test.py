"""The scripts that choose and install a stack, on machines that stand-ins make up."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINUX, OLD, ARM, MAC = (
    ("Linux", "x86_64", "glibc 2.36"),
    ("Linux", "x86_64", "glibc 2.28"),
    ("Linux", "aarch64", "glibc 2.31"),
    ("Darwin", "arm64", ""),
)
ALPINE, INTEL_MAC = ("Linux", "x86_64", ""), ("Darwin", "x86_64", "")
# It takes the version of its name, makes environments of itself, and installs nothing.
PYTHON = f"""#!/bin/sh
case $2 in
venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && touch "$3/bin/fedpersonal" ;;
pip) ;;
*) program=$2; shift 2; exec {sys.executable} -IS -c "import sys
sys.version_info, sys.executable = (3, VERSION, 1), '$0'
$program" "$@" ;;
esac
"""


@pytest.fixture(name="machine")
def _machine(tmp_path, monkeypatch):
    """Returns what makes up a machine; returns its folder of programs."""

    def make(system, versions):
        folder = tmp_path / "bin of it"
        folder.mkdir()
        kernel, processor, library = system
        programs = {
            "uname": f"#!/bin/sh\n[ $1 = -s ] && echo {kernel} || echo {processor}\n",
            "getconf": f"#!/bin/sh\necho {library}\n",
        }
        for name in versions.split():
            version = name.removeprefix("python3.")
            program = PYTHON.replace("VERSION", version)
            # The shim of a version that is not chosen.
            programs[name.strip("-")] = "#!/bin/sh\nexit 127\n" if "-" in name else program
        for name, program in programs.items():
            (folder / name).write_text(program)
            (folder / name).chmod(0o755)
        for name in "awk bash cat cmp cp dirname env head make mkdir mv rm sh sort touch".split():
            (folder / name).symlink_to(shutil.which(name))
        for name in ("PYTHON", "STACK", "MAKEFLAGS", "MAKELEVEL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PATH", str(folder))
        return folder

    return make


def run(*command, **environment):
    """Returns what a command prints, in one line."""
    ended = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return ended.stdout.rstrip("\n")


@pytest.mark.parametrize(
    ("system", "pythons", "environment", "found"),
    [
        (LINUX, "python3.9 python3.11 python3.13", {}, "tff python3.11"),
        (LINUX, "python3.13 python3.12", {}, "today python3.13"),
        (LINUX, "python3.13 -python3.10 -python3.12", {}, "today python3.13"),
        (LINUX, "python3.10 python3.13", {"STACK": "today"}, "today python3.13"),
        (LINUX, "python3.11", {"STACK": "today"}, "today python3.11"),
        (LINUX, "python3.11 python3.12", {"PYTHON": "python3.12"}, "today python3.12"),
        (LINUX, "python3.10", {"STACK": "today"}, "Python 3.11 to 3.13 with"),
        (LINUX, "python3.12", {"STACK": "tff"}, "Python 3.9 to 3.11 with"),
        (LINUX, "python3.8 python3.14", {}, "Python 3.9 to 3.13 with"),
        (LINUX, "python3.11 python3.8", {"PYTHON": "python3.8"}, "not PYTHON=python3.8; name one"),
        (LINUX, "python3.11", {"STACK": "new"}, "STACK=tff or STACK=today, not STACK=new"),
        (OLD, "python3.11", {}, "today python3.11"),
        (ARM, "python3.10 python3.11", {}, "today python3.11"),
        (ARM, "python3.11", {"STACK": "tff"}, "2.31 or later; this is Linux on aarch64 with glibc"),
        (MAC, "python3.11 python3.13", {}, "today python3.13"),
        (MAC, "python3.11", {"STACK": "tff"}, "2.31 or later; this is Darwin on arm64"),
        (INTEL_MAC, "python3.11", {}, "or macOS on arm64; this is Darwin on x86_64"),
        (ALPINE, "python3.11", {}, "or macOS on arm64; this is Linux on x86_64"),
    ],
)
def test_the_python_and_the_stack_that_are_found(machine, system, pythons, environment, found):
    folder = machine(system, pythons)
    printed = run(ROOT / "scripts" / "find_python.sh", **environment)
    assert found.replace(" python3", f" {folder}/python3") in printed and "\n" not in printed
    if "today" not in found and "tff" not in found:
        assert printed.startswith("fedpersonal needs ")


@pytest.fixture(name="checkout")
def _checkout(tmp_path, monkeypatch):
    """A folder with the scripts and locks of a few lines."""
    for name in ("scripts/find_python.sh", "scripts/install.sh", "Makefile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "requirements").mkdir()
    for name in ("lock", "today"):
        (tmp_path / "requirements" / f"{name}.txt").write_text(f"{name}==1\n")
    (tmp_path / "setup.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_make_installs_a_stack_says_why_and_keeps_it(machine, checkout):
    machine(LINUX, "python3.11 python3.13")
    installed = checkout / ".venv" / "installed"
    said = run("make", "install")
    assert said.startswith("Installing the stack tff into .venv (1 to 2 minutes): ")
    assert said.endswith("TensorFlow Federated can be had for Python 3.11 on Linux x86_64")
    assert installed.read_text() == "lock==1\n"
    assert run("make", "install") == "make: Nothing to be done for 'install'."
    assert run("make", "install", "STACK=today").endswith(
        "(1 to 2 minutes): STACK=today was asked for"
    )
    assert installed.read_text() == "today==1\n"
    # Once chosen it stays, until its lock changes.
    os.utime(installed, (0, 0))
    assert run("make", "install") == "" and installed.read_text() == "today==1\n"
    (checkout / "requirements" / "today.txt").write_text("today==2\n")
    assert "the stack tff" in run("make", "install")


def test_make_says_why_there_is_none_of_tff(machine, checkout):
    machine(MAC, "python3.12 python3.11")
    said = run("make", "install")
    assert said.endswith("TensorFlow Federated cannot be had for Python 3.12 on Darwin arm64")
    assert (checkout / ".venv" / "installed").read_text() == "today==1\n"


def test_make_stops_in_one_line_where_nothing_fits(machine, checkout):
    machine(LINUX, "python3.8")
    said = run("make", "install")
    assert "fedpersonal needs Python 3.9 to 3.13 with its venv module; name one" in said
    assert "\n" not in said and not (checkout / ".venv").exists()

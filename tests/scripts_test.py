"""The scripts that choose and install a stack, on machines that stand-ins make up."""

from __future__ import annotations

import io
import os
import pathlib
import re
import runpy
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
# It takes the version of its name, makes environments of itself, runs scripts, installs nothing.
PYTHON = f"""#!/bin/sh
case $1 in *.py) exec {sys.executable} -c "import os, runpy, sys, sysconfig
sys.executable, sys.prefix = '$0', os.path.dirname(os.path.dirname('$0'))
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name='__main__')" "$@" ;; esac
case $2 in
venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && touch "$3/bin/fedpersonal" ;;
pip) ;;
*) program=$2; shift 2; exec {sys.executable} -IS -c "import sys
sys.version_info, sys.executable = (3, VERSION, 1), '$0'
$program" "$@" ;;
esac
"""
# It fetches what is in a folder, if anything, and installs one package, for a second.
UV = """#!/bin/sh
echo "$@" >> uv.log
case "$1 $2" in
"python install") [ -e fetchable/python$3 ] || { echo no route to host; exit 1; } ;;
"python find") echo "$PWD/fetchable/python$4" ;;
*) mkdir "$TMPDIR/lock-1.dist-info"
  head -c 3000000 /dev/zero > "$TMPDIR/data"
  sleep 1
  [ ! -e uv.fails ] || { echo wrong hash; exit 1; } ;;
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
            **({"uv": UV} if "uv" in versions else {}),
            "uname": f"#!/bin/sh\n[ $1 = -s ] && echo {kernel} || echo {processor}\n",
            "getconf": f"#!/bin/sh\necho {library}\n",
        }
        for name in versions.replace("uv", "").split():
            version = name.removeprefix("python3.")
            program = PYTHON.replace("VERSION", version)
            # The shim of a version that is not chosen.
            programs[name.strip("-")] = "#!/bin/sh\nexit 127\n" if "-" in name else program
        for name, program in programs.items():
            (folder / name).write_text(program)
            (folder / name).chmod(0o755)
        for name in (
            "awk bash cat cmp cp dirname env head make mkdir mv rm sed sh sleep sort touch".split()
        ):
            (folder / name).symlink_to(shutil.which(name))
        for name in ("PYTHON", "STACK", "UV", "MAKEFLAGS", "MAKELEVEL"):
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
        (
            LINUX,
            "python3.8 uv",
            {},
            "Python 3.9 to 3.13 with its venv module; `make install` has uv",
        ),
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
    assert found.replace(" python3", f" {folder}/python3") in printed
    if found.startswith(("tff", "today")):
        assert "\n" not in printed
    else:
        assert printed.startswith("fedpersonal needs ") and printed.count("\n") < 2


@pytest.fixture(name="checkout")
def _checkout(tmp_path, monkeypatch):
    """A folder with the scripts and locks of a few lines."""
    (tmp_path / "scripts").mkdir()
    for name in ("find_python.sh", "install.sh", "install_lock.py"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    shutil.copy(ROOT / "Makefile", tmp_path)
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
    assert "TensorFlow Federated can be had for Python 3.11 on Linux x86_64\n" in said
    assert said.endswith(" packages in 0 s, by pip")
    assert installed.read_text() == "lock==1\n"
    assert run("make", "install") == "make: Nothing to be done for 'install'."
    asked = "(1 to 2 minutes): STACK=today is set\n"
    assert asked in run("make", "install", "STACK=today")
    assert installed.read_text() == "today==1\n"
    # Once chosen it stays, until its lock changes.
    os.utime(installed, (0, 0))
    assert run("make", "install") == "" and installed.read_text() == "today==1\n"
    (checkout / "requirements" / "today.txt").write_text("today==2\n")
    assert "the stack tff" in run("make", "install")


def test_make_says_why_there_is_none_of_tff(machine, checkout):
    machine(MAC, "python3.12 python3.11")
    said = run("make", "install")
    assert "TensorFlow Federated cannot be had for Python 3.12 on Darwin arm64\n" in said
    assert (checkout / ".venv" / "installed").read_text() == "today==1\n"


def test_make_stops_where_no_python_fits_and_says_how_to_get_one(machine, checkout):
    machine(LINUX, "python3.8")
    needs, uv, stopped = run("make", "install").splitlines()
    assert needs.startswith(
        "fedpersonal needs Python 3.9 to 3.13 with its venv module: install one"
    )
    assert uv.startswith("Or install uv ") and stopped.endswith("Error 2")
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("pythons", "stack", "wanted"), [("python3.8", "", "3.13"), ("python3.13", "tff", "3.11")]
)
def test_uv_fetches_a_python_where_none_fits(machine, checkout, pythons, stack, wanted):
    folder = machine(LINUX, f"{pythons} uv")
    (checkout / "fetchable").mkdir()
    arguments = ["make", "install", *([f"STACK={stack}"] if stack else [])]
    said = run(*arguments)
    assert f"There is no Python 3.9 to {wanted} with its venv module here: uv fetches" in said
    assert "no route to host\nfedpersonal needs" in said and "could not fetch Python 3.11" in said
    assert not (checkout / ".venv").exists()
    (folder / "python3.11").write_text(PYTHON.replace("VERSION", "11"))
    (folder / "python3.11").chmod(0o755)
    (folder / "python3.11").rename(checkout / "fetchable" / "python3.11")
    said = run(*arguments)
    assert "Installing the stack tff" in said and "  1 packages in 1 s, by uv" in said
    assert (checkout / ".venv" / "installed").read_text() == "lock==1\n"
    command = (checkout / "uv.log").read_text().splitlines()[-1]
    assert "--no-deps --require-hashes --no-build-isolation -r requirements/lock.txt" in command
    assert command.endswith("--python .venv/bin/python")


def test_uv_that_fails_is_not_replaced_by_pip(machine, checkout):
    machine(LINUX, "python3.11 uv")
    (checkout / "uv.fails").touch()
    assert "wrong hash\nuv could not install " in run("make", "install")
    assert not (checkout / ".venv" / "installed").exists()
    assert "by pip" in run("make", "install", "UV=")
    assert (
        run("make", "install", "STACK=today", "UV=uw").count("UV=uw: there is no such program") == 1
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_installing_shows_packages_and_megabytes(machine, checkout, monkeypatch, is_terminal):
    machine(LINUX, "uv")
    shown = io.StringIO()
    shown.isatty = lambda: is_terminal
    (checkout / "lock").write_text(
        "Lock==1 \\\n    --hash=sha256:0\nb==2\nc==3 ; python_version < '3'\n"
    )
    program = runpy.run_path(str(ROOT / "scripts" / "install_lock.py"))
    of_program = program["main"].__globals__
    monkeypatch.setitem(of_program, "TERMINAL_INTERVAL" if is_terminal else "OTHER_INTERVAL", 0.6)
    monkeypatch.setattr(sys, "argv", ["", "lock"])
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "prefix", str(checkout))
    with pytest.raises(SystemExit, match="0"):
        program["main"]()
    first, *_, last = re.split("[\r\n]+", shown.getvalue().strip())
    assert first.strip() == "1 of 2 packages fetched, 3 MB; 0 installed; 1 s"
    assert last == "  2 packages in 1 s, by uv" and ("\r" in shown.getvalue()) == is_terminal

"""The wheel, and the versions that it is installed with beside a program's own packages."""

from __future__ import annotations

import importlib.metadata
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parents[1]
COPIED = ("fedpersonal", "experiments")
# What a command reads beside code, as somebody would name it in a folder of their own.
PROGRAM = """
import pathlib, sys
from fedpersonal.suite.commands import doctor, option_flags
from fedpersonal.suite.leaderboard import page, settings
from fedpersonal.report import page as report

assert pathlib.Path(doctor.__file__).is_relative_to(sys.argv[1]), doctor.__file__
print(*option_flags.expand_flagfiles(["--flagfile=experiments/presets/movielens_quick.flags"]))
print(report.PAGE.is_dir(), settings.COMMITTED.is_file(), repr(page._commit()))
print(doctor.check_python().status, *doctor.check_packages())
"""


@pytest.fixture(name="wheel", scope="module")
def _wheel(tmp_path_factory):
    """The folder of a wheel's files, made without the network, of copies."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", "dist", "."]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    (built,) = (folder / "dist").iterdir()
    with zipfile.ZipFile(built) as file:
        file.extractall(folder / "in it")
    return folder / "in it"


def test_the_wheel_has_every_file_of_the_packages(wheel):
    def files(root):
        paths = (path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)) for path in paths if "__pycache__" not in path.parts}

    presets = pathlib.Path("suite/presets")
    presets = {str(presets / path) for path in files(ROOT / "experiments/presets")}
    assert files(wheel / "fedpersonal") == {*files(ROOT / "fedpersonal"), *presets} - {"BUILD"}
    installed = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert installed == {"fedpersonal"}


def test_commands_read_the_wheel_and_no_checkout(wheel, tmp_path):
    subprocess.run(["git", "init", "--quiet"], cwd=wheel, check=True)
    command = [sys.executable, "-c", PROGRAM, str(wheel)]
    ended = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(wheel)}, capture_output=True, text=True
    )
    flags, files, checked = ended.stdout.splitlines() or pytest.fail(ended.stderr)
    preset = (ROOT / "experiments/presets/movielens_quick.flags").read_text(encoding="utf-8")
    assert flags == " ".join(line for line in preset.splitlines() if line[:1] not in ("", "#"))
    assert files == "True True ''" and checked.startswith("ok ok ")


def pins(name, **machine):
    """Returns the versions of a file of requirements/, on a machine."""
    lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    lines = [line.rstrip("\\ ") for line in lines if line[:1] not in ("", " ", "#")]
    return versions(lines, machine)


def versions(lines, machine):
    found = [
        one for one in map(Requirement, lines) if not one.marker or one.marker.evaluate(machine)
    ]
    wanted = {one.name: one.specifier for one in found}
    assert len(wanted) == len(found)
    return wanted


@pytest.mark.parametrize(
    ("lock", "python", "system", "processor"),
    [
        *(("lock.txt", f"3.{minor}", "linux", "x86_64") for minor in (9, 10, 11)),
        *(("today.txt", f"3.{minor}", "linux", "x86_64") for minor in (12, 13)),
        *(("today.txt", f"3.{minor}", "linux", "aarch64") for minor in (11, 13)),
        *(("today.txt", f"3.{minor}", "darwin", "arm64") for minor in (11, 12)),
    ],
)
def test_constraints_are_the_versions_of_each_lock(wheel, lock, python, system, processor):
    machine = {
        "python_version": python,
        "python_full_version": f"{python}.7",
        "sys_platform": system,
        "platform_machine": processor,
        "extra": "language",
    }
    constraints = pins("constraints.txt", **machine)
    assert constraints.items() <= pins(lock, **machine).items()
    metadata = importlib.metadata.PathDistribution(next(wheel.glob("*.dist-info")))
    for name, specifier in versions(metadata.requires, machine).items():
        (pin,) = constraints[name]
        assert specifier.contains(pin.version), name
    assert {"recbole", "transformers"} < constraints.keys()
    assert not {"pytest", "ray", "mkdocs", "torch"} & constraints.keys()

"""Checks whether experiments can run on this machine, and advises what to do if they cannot.

fedpersonal doctor
fedpersonal doctor --data_dir=path/to/data --output_dir=results

It prints one line per check: ok, warning or failed. Exit status: 0 if no check failed, else 1; 2
after a mistake in the flags.
"""

# Only the standard library is imported before a check: packages may be missing or broken.
from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple, NoReturn

ROOT = pathlib.Path(__file__).resolve().parents[3]
OK, WARNING, FAILED = "ok", "warning", "failed"
_MISTAKE = 2
_INTERRUPTED = 130
_LONGEST = 400  # Characters of a message of another program.
_GB = 10**9
# A small run peaks at about a gigabyte, of which TensorFlow Federated is half.
_MEMORY_NEEDED, _MEMORY_OF_USE = 1 * _GB, 2 * _GB
_DISK_NEEDED = 0.5 * _GB
_SECONDS_TO_COMPUTE = 600.0
_PYTHON = [sys.executable]
_IMPORT = "from fedpersonal.suite.commands import doctor"
_IS_CHECKOUT = (ROOT / "scripts" / "find_python.sh").exists()  # Otherwise an installed package.
_INSTALL = "type: make install" if _IS_CHECKOUT else "install what constraints.txt lists"
_AVX = "take a processor with AVX, which TensorFlow's packages need"
_PINNED = re.compile(r"^([\w.-]+)==([^\s;]+)(?: *; *(.*?))? *\\?$", re.MULTILINE)
# Of each stack: its module of the federated language, its lock, and the lock with Ray.
_STACKS = {
    "tff": ("tensorflow_federated", "lock.txt", "cluster_lock.txt"),
    "today": ("federated_language", "today.txt", "today_cluster.txt"),
}
# The modules that describe the data of commands.
_DATA = {
    "movielens": "fedpersonal.suite.readers.movielens",
    "stackoverflow": "fedpersonal.suite.tasks.next_word.options",
    "reddit": "fedpersonal.suite.tasks.labels.options",
    "tv_shows": "fedpersonal.suite.tasks.utterances.source",
}


class Finding(NamedTuple):
    """The result of a check: `OK`, `WARNING` or `FAILED`, a description, and advice."""

    status: str
    description: str
    advice: str = ""


def check_python() -> Finding:
    """Checks that packages exist for this system and this version of Python."""
    system = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    text = ", ".join(filter(None, [system, " ".join(filter(None, platform.libc_ver()))]))
    if not _IS_CHECKOUT or _find_python(PYTHON=sys.executable)[0]:
        return Finding(OK, text)
    _, other, error = _find_python()
    return Finding(FAILED, f"{text} is not supported", error or f"{_INSTALL} PYTHON={other}")


def _find_python(**environment: str) -> tuple[str, str, str]:
    """Returns a stack, a Python for it, and the error if there is none."""
    result = subprocess.run(
        [ROOT / "scripts" / "find_python.sh"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    stack, _, python = result.stdout.strip().partition(" ")
    return stack, python, _line(result.stderr)


def check_packages() -> Finding:
    """Compares the installed packages with the lock of their stack and, if installed, of Ray.

    If neither stack is installed, packages are compared with the stack that could be installed.
    Outside of a checkout, they are compared with the requirements in fedpersonal's metadata.
    """
    from packaging.markers import Marker

    if not _IS_CHECKOUT:
        return _check_requirements(importlib.metadata.requires("fedpersonal") or [])
    find_spec = importlib.util.find_spec
    installed = (stack for stack, (module, *_) in _STACKS.items() if find_spec(module))
    stack = next(installed, None) or _find_python(PYTHON=sys.executable)[0] or "tff"
    _, lock, cluster_lock = _STACKS[stack]
    locked: dict[str, str] = {}
    for name in (lock, cluster_lock) if find_spec("ray") else (lock,):
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        pins = _PINNED.findall(text)
        locked.update({p: v for p, v, marker in pins if not marker or Marker(marker).evaluate()})
    versions = {
        _normal(one.metadata["Name"]): one.version for one in importlib.metadata.distributions()
    }
    missing = [package for package in locked if _normal(package) not in versions]
    if missing:
        text = f"of {len(locked)} of the stack {stack}, missing: {_line(', '.join(missing))}"
        return Finding(FAILED, text, _INSTALL)
    different = [p for p, version in locked.items() if versions[_normal(p)] != version]
    if different:
        text = f"{len(locked)} of the stack {stack}, in other versions than {lock}'s: "
        return Finding(WARNING, text + _line(", ".join(different)), _INSTALL)
    return Finding(
        OK, f"{len(locked)} of the stack {stack}, in the versions of {lock}, in {sys.prefix}"
    )


def _check_requirements(lines: list[str]) -> Finding:
    """Compares the installed packages with requirements, without those of extras."""
    from packaging.requirements import Requirement

    requirements = [
        one
        for one in map(Requirement, lines)
        if not one.marker or one.marker.evaluate({"extra": ""})
    ]
    wrong = []
    for one in requirements:
        try:
            version = importlib.metadata.version(one.name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if not version or not one.specifier.contains(version, prereleases=True):
            wrong.append(f"{one.name}{one.specifier} ({version or 'missing'})")
    text = f"{len(requirements)} that fedpersonal needs, in {sys.prefix}"
    if wrong:
        return Finding(FAILED, f"of {text}, wrong: {_line(', '.join(wrong))}", _INSTALL)
    return Finding(OK, text)


def check_memory() -> Finding:
    """Checks the free memory, and reports the largest models that fit."""
    from fedpersonal.federated import memory
    from fedpersonal.runtime.processors import count_processors

    free, shards = memory.free_bytes(), count_processors()
    text = f"{free / _GB:.1f} GB free"
    if free < _MEMORY_NEEDED:
        return Finding(FAILED, f"{text}; a small run takes 1 GB", "end other programs")
    largest = memory.largest_model_bytes(free, shards) / _GB
    text += f": up to {largest:.2g} GB of global variables on {shards} processors"
    if free < _MEMORY_OF_USE:
        return Finding(WARNING, text, "use few shards and small embeddings")
    return Finding(OK, text)


def check_folder(name: str | None) -> Finding:
    """Checks that a folder, or the temporary folder, can be written, and its free space.

    The folder need not exist yet.
    """
    advice = "name another by --output_dir" if name else "set TMPDIR to another"
    try:
        folder = pathlib.Path(name or tempfile.gettempdir()).absolute()
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=nearest) as file:  # A file without a name.
            file.write(bytes(2**20))
        free = shutil.disk_usage(nearest).free
    except OSError as error:
        return Finding(FAILED, f"no file can be written: {_line(error)}", advice)
    text = f"{folder}: {free / _GB:.1f} GB free"
    if free < _DISK_NEEDED:
        return Finding(FAILED, text, f"free disk space, or {advice}")
    return Finding(OK, text)


def check_data(module: str, data_dir: str | None) -> Finding:
    """Looks for a task's files in the folder of data."""
    if data_dir is None:
        return Finding(OK, "MovieLens-100K or generated texts, without --data_dir")
    described = importlib.import_module(module)
    if module == _DATA["movielens"]:
        names = described.MOVIELENS_1M_FILES
    else:
        names = [name for group in described.SOURCES.files.values() for name in group]
    if not os.path.isdir(data_dir):
        return Finding(FAILED, f"{data_dir} is not a folder", "name another by --data_dir")
    present = [name for name in names if os.path.isfile(os.path.join(data_dir, name))]
    if not present:
        return Finding(WARNING, f"{data_dir} has no {' or '.join(names)}")
    empty = [name for name in present if not os.path.getsize(os.path.join(data_dir, name))]
    if empty:
        return Finding(FAILED, f"{data_dir}: {', '.join(empty)}: empty", "get the file again")
    return Finding(OK, f"{data_dir} has {', '.join(present)}")


def check_computing(runtime: str) -> Finding:
    """Computes a federated sum in a runtime, in another process: Python may crash or hang."""
    if runtime == "ray" and not importlib.util.find_spec("ray"):
        command = "make cluster_install" if _IS_CHECKOUT else "fedpersonal[cluster]"
        advice = f"{command} (from Python 3.10 on) adds it"
        return Finding(OK, "Ray is not installed; only clusters need it", advice)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR", "AUTOGRAPH_VERBOSITY": "0"}
    paths = os.pathsep.join([str(ROOT), *sys.path])
    try:
        ended = subprocess.run(
            [*_PYTHON, "-c", f"{_IMPORT}; doctor.print_sum({runtime!r})"],
            env={**quiet, **os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS_TO_COMPUTE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding(FAILED, f"it hangs: no result within {_SECONDS_TO_COMPUTE:g} s")
    code, last = ended.returncode, ended.stdout.strip().split("\n")[-1]
    if code == 0:
        return Finding(OK, _line(last))
    end = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
    advice = _AVX if -code in (signal.SIGILL, signal.SIGABRT) else ""
    advice = _INSTALL if "ModuleNotFoundError" in last else advice
    return Finding(FAILED, f"Python ended {end}: {_line(last)}", advice)


def print_sum(name: str) -> None:
    """Computes the sum of clients' squares in a runtime, compiled, and prints the runtime."""
    from fedpersonal import runtime

    runtime.use_runtime(name)
    import numpy as np
    import tensorflow as tf

    from fedpersonal import tff

    @tff.tf_computation(np.float32)
    def square(x):  # With a loop: only such computations are compiled.
        return tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, x * x), (0, 0.0))[1]

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def sum_up(numbers):
        return tff.federated_sum(tff.federated_map(square, numbers))

    result = float(sum_up([1.0, 2.0, 3.0]))
    used = runtime.describe_runtime()  # While the computation exists.
    if (result, used) != (14.0, f"{name}, compiled"):
        sys.exit(f"a sum is {result:g}, not 14, or it ran as {used!r}, not compiled")
    print(f"TensorFlow {tf.__version__}, {tff.VERSION}: {used}")


def run_check(check: Callable[[], Finding]) -> Finding:
    """Runs a check; an error of a package is a finding, too."""
    try:
        return check()
    except (Exception, SystemExit) as error:
        advice = _INSTALL if isinstance(error, ImportError) else ""
        return Finding(FAILED, _line(f"{type(error).__name__}: {error}"), advice)


def _normal(name: str) -> str:
    """Returns a package's name in the spelling of locks."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _line(text: object) -> str:
    """Returns a message in one line of limited length."""
    return " ".join(str(text).split())[:_LONGEST]


class _Parser(argparse.ArgumentParser):
    """A parser of flags that needs no absl, which may be missing."""

    def error(self, message: str) -> NoReturn:
        self.exit(_MISTAKE, f"error: {message}\n")


def main() -> int:
    """Runs all checks and prints their findings; returns the exit status."""
    parser = _Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--data_dir", help="A folder of data to look for files in.")
    parser.add_argument("--output_dir", default="results", help="The folder for runs.")
    parser.add_argument("--helpfull", action="help", help="The same as --help.")
    arguments = parser.parse_args()
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # As in `launch`.
    part = functools.partial
    checks: dict[str, Callable[[], Finding]] = {
        "Python": check_python,
        "packages": check_packages,
        "memory": check_memory,
        "output folder": part(check_folder, arguments.output_dir),
        "temporary folder": part(check_folder, None),
        **{f"data of {name}": part(check_data, _DATA[name], arguments.data_dir) for name in _DATA},
        **{f"runtime {name}": part(check_computing, name) for name in ("local", "ray")},
    }
    counts = dict.fromkeys((OK, WARNING, FAILED), 0)
    for name, check in checks.items():
        status, text, advice = run_check(check)
        counts[status] += 1
        print(f"{status:8} {name}: {'; '.join(filter(None, [text.rstrip('.'), advice]))}")
        sys.stdout.flush()
    print(f"{len(checks)} checks: {counts[FAILED]} failed, {counts[WARNING]} warnings")
    return int(counts[FAILED] > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)

"""Says whether experiments can run on this machine, and what to do where they cannot.

python -m experiments.doctor
python -m experiments.doctor --data_dir=path/to/data --output_dir=results --json

One line a check: ok, warning or failed. Exit status: 0 where nothing failed, else 1; 2 after a
mistake in the flags.
"""

# Nothing but the standard library is imported before a check: the packages may be what is ill.
from __future__ import annotations

import argparse
import atexit
import fcntl
import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

ROOT = pathlib.Path(__file__).resolve().parents[1]
OK, WARNING, FAILED = "ok", "warning", "failed"
_MISTAKE = 2
_INTERRUPTED = 130
_LONGEST = 400  # Characters of what others say.
_GB = 10**9
# A small run peaks at about a gigabyte, of which TensorFlow Federated is half.
_MEMORY_NEEDED, _MEMORY_OF_USE = 1 * _GB, 2 * _GB
_DISK_NEEDED = 0.5 * _GB
_SECONDS_TO_COMPUTE = 600.0
_PYTHON = [sys.executable]
_PROGRAM = "from experiments import doctor; doctor.compute()"
_NUMBERS, _SUM_OF_SQUARES = (1.0, 2.0, 3.0), 14.0
_INSTALL = "type: make install"
_AVX = "take a processor with AVX, which TensorFlow's packages need"
_PINNED = re.compile(r"^([\w.-]+)==([^\s;]+)(?: *; *(.*?))? *\\?$", re.MULTILINE)
# Where each command's data are described.
_DATA = {
    "movielens": "fedpersonal.data.movielens",
    "stackoverflow": "fedpersonal.tasks.next_word.data",
    "reddit": "fedpersonal.tasks.documents.task",
    "tv_shows": "fedpersonal.tasks.utterances.source",
}


class Finding(NamedTuple):
    """What a check has found.

    Attributes:
        status: `OK`, `WARNING` or `FAILED`.
        what: What there is.
        advice: What to do about it.
    """

    status: str
    what: str
    advice: str = ""


def check_python() -> Finding:
    """Checks that there are packages for this system and this version of Python."""
    what = f"{platform.python_version()} on {platform.system()} {platform.machine()}, "
    what += " ".join(platform.libc_ver())
    # It looks for a Python that the packages can be installed with.
    script = ROOT / "scripts" / "find_python.sh"
    other = subprocess.run([script], capture_output=True, text=True, check=False)
    if (3, 9) <= sys.version_info[:2] <= (3, 11) and "Linux" not in other.stderr:
        return Finding(OK, what)
    advice = other.stderr if other.returncode else f"{_INSTALL} PYTHON={other.stdout}"
    return Finding(FAILED, f"{what} is not enough", advice.strip())


def check_packages() -> Finding:
    """Compares the installed packages with the lock; with that of clusters, too, if Ray is here."""
    from packaging.markers import Marker

    names = ["lock.txt", *(["cluster_lock.txt"] if importlib.util.find_spec("ray") else [])]
    pinned: dict[str, str] = {}
    for name in names:
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        found = _PINNED.findall(text)
        pinned.update({p: v for p, v, marker in found if not marker or Marker(marker).evaluate()})
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    known = {_normal(name): version for name, version in installed.items()}
    missing = [package for package in pinned if _normal(package) not in known]
    if missing:
        return Finding(FAILED, f"of {len(pinned)}, missing: {_line(', '.join(missing))}", _INSTALL)
    different = [p for p, version in pinned.items() if known[_normal(p)] != version]
    if different:
        what = f"{len(pinned)}, in other versions than the lock's: {_line(', '.join(different))}"
        return Finding(WARNING, what, _INSTALL)
    return Finding(OK, f"{len(pinned)} in the versions of the lock, in {sys.prefix}")


def check_processors() -> Finding:
    """Says how many processors there are for this process, and the shards that follow."""
    from fedpersonal.runtime.processors import count_processors

    count, there = count_processors(), os.cpu_count() or 1
    limit = " (by affinity, or the quota of a container)" if count < there else ""
    return Finding(OK, f"{count} of {there}{limit}: {count} shards a round, or as --shards says")


def check_memory() -> Finding:
    """Says how much memory is free, and the models that it allows."""
    from fedpersonal.federated import memory
    from fedpersonal.runtime.processors import count_processors

    free, shards = memory.free_bytes(), count_processors()
    what = f"{free / _GB:.1f} GB free"
    if free < _MEMORY_NEEDED:
        return Finding(FAILED, f"{what}; a small run takes 1 GB", "end other programs")
    largest = memory.largest_model_bytes(free, shards) / _GB
    what += f": up to {largest:.2g} GB of global variables in {shards} shards"
    if free < _MEMORY_OF_USE:
        return Finding(WARNING, what, "take few shards and small embeddings")
    return Finding(OK, what)


def check_room(name: str, advice: str) -> Finding:
    """Checks that a folder can be written and locked, and how much room there is."""
    folder = pathlib.Path(name).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:  # It has no name there.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(bytes(2**20))
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(nearest).free
    except OSError as error:
        return Finding(FAILED, f"{nearest}: no file can be written: {error.strerror}", advice)
    what = f"{folder}: {free / _GB:.1f} GB free"
    if free < _DISK_NEEDED:
        return Finding(FAILED, what, f"make room, or {advice}")
    return Finding(OK, what)


def check_temporary() -> Finding:
    """Checks the same of the folder for temporary files."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding(FAILED, _line(error.strerror), "make room there, or set TMPDIR")
    return check_room(folder, "set TMPDIR to another")


def check_data(module: str, data_dir: str | None) -> Finding:
    """Looks for a task's files in the folder of data."""
    if data_dir is None:
        return Finding(OK, "MovieLens-100K or made-up texts, as no --data_dir is given")
    described = importlib.import_module(module)
    if module == _DATA["movielens"]:
        names = described.MOVIELENS_1M_FILES
    else:
        names = [name for group in described.SOURCES.files.values() for name in group]
    if not os.path.isdir(data_dir):
        return Finding(FAILED, f"{data_dir} is not a folder", "name another by --data_dir")
    found = [name for name in names if os.path.isfile(os.path.join(data_dir, name))]
    if not found:
        return Finding(WARNING, f"{data_dir} has no {' or '.join(names)}")
    empty = [name for name in found if not os.path.getsize(os.path.join(data_dir, name))]
    if empty:
        return Finding(FAILED, f"{data_dir}: {', '.join(empty)}: empty", "get the file again")
    return Finding(OK, f"{data_dir} has {', '.join(found)}")


def check_import() -> Finding:
    """Imports TensorFlow Federated."""
    from fedpersonal import runtime

    with runtime.quick_imports():
        import tensorflow as tf
        import tensorflow_federated as tff
    return Finding(OK, f"TensorFlow {tf.__version__}, TensorFlow Federated {tff.__version__}")


def check_local(*, compile: bool) -> Finding:
    """Computes in this process, compiled by XLA or not."""
    from fedpersonal import runtime

    runtime.use_runtime("local", compile=compile)
    return _compute("local, compiled" if compile else "local")


def check_ray() -> Finding:
    """Computes on a Ray of its own, if Ray is installed."""
    from fedpersonal import runtime
    from fedpersonal.errors import UserError

    try:
        runtime.check_runtime("ray")
    except UserError:
        advice = "make cluster_install (Python 3.10, 3.11) adds it"
        return Finding(OK, "Ray is not installed, which only clusters need", advice)
    runtime.use_runtime("ray")
    return _compute("ray")


# What may crash or hang Python, so it is done in another process, one after the other.
_COMPUTING: dict[str, Callable[[], Finding]] = {
    "import": check_import,
    "local plain": lambda: check_local(compile=False),
    "local compiled": lambda: check_local(compile=True),
    "ray": check_ray,
}


def examine(output_dir: str, data_dir: str | None) -> Iterator[tuple[str, Finding, float]]:
    """Yields the name of each check, what it has found, and the seconds that it took."""
    checks: dict[str, Callable[[], Finding]] = {
        "Python": check_python,
        "packages": check_packages,
        "processors": check_processors,
        "memory": check_memory,
        "output folder": lambda: check_room(output_dir, "name another by --output_dir"),
        "temporary folder": check_temporary,
    }
    for name, check in checks.items():
        yield name, *_timed(check)
    for command, module in _DATA.items():
        yield f"data of {command}", *_timed(functools.partial(check_data, module, data_dir))
    yield from _examine_computing(_SECONDS_TO_COMPUTE)


def compute() -> NoReturn:
    """Makes the checks of `_COMPUTING`; prints each one's finding as JSON, after a blank line."""
    for check in _COMPUTING.values():
        print("\n" + json.dumps(_timed(check)), flush=True)
    atexit._run_exitfuncs()
    # Threads of TensorFlow outlive its work, and finalizing the interpreter may crash in them.
    os._exit(0)


def _examine_computing(seconds: float) -> Iterator[tuple[str, Finding, float]]:
    """Yields what `compute` finds in another process, which has so many seconds for all."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR", "AUTOGRAPH_VERBOSITY": "0"}
    paths = os.pathsep.join([str(ROOT), *sys.path])
    process = subprocess.Popen(
        [*_PYTHON, "-c", _PROGRAM],
        env={**quiet, **os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
        reason = _how_it_ended(process.returncode, printed)
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode(errors="replace")
        reason = Finding(FAILED, f"it hangs: no answer within {seconds:g} s")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("[[")]
    for number, name in enumerate(_COMPUTING):
        if number < len(found):
            yield name, Finding(*found[number][0]), found[number][1]
        elif number == len(found):
            yield name, reason, 0.0
        else:
            yield name, Finding(FAILED, "not tried, as the check before it failed"), 0.0


def _how_it_ended(code: int, printed: str) -> Finding:
    last = printed.strip().split("\n")[-1]
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
    advice = _AVX if -code in (signal.SIGILL, signal.SIGABRT) else ""
    return Finding(FAILED, f"Python was ended {how}: {_line(last)}", advice)


def _timed(check: Callable[[], Finding]) -> tuple[Finding, float]:
    began = time.monotonic()
    try:
        finding = check()
    except ImportError as error:
        finding = Finding(FAILED, _line(f"{type(error).__name__}: {error}"), _INSTALL)
    except (Exception, SystemExit) as error:  # Whatever a package does, it is a finding.
        kind = type(error).__name__
        finding = Finding(FAILED, _line(error if kind == "UserError" else f"{kind}: {error}"))
    return finding, round(time.monotonic() - began, 3)


def _compute(wanted: str) -> Finding:
    """Adds up three clients' squares in the runtime that was chosen, and sees where that was."""
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff

    from fedpersonal import runtime

    @tff.tensorflow.computation(np.float32)
    def square(x):  # In a loop, which is worth compiling.
        return tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, x * x), (0, 0.0))[1]

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def add_up(numbers):
        return tff.federated_sum(tff.federated_map(square, numbers))

    result = float(add_up(list(_NUMBERS)))
    used = runtime.describe_runtime()  # While the computation exists.
    if not used.startswith(wanted):
        return Finding(FAILED, f"it ran as {used!r}, not {wanted!r}", "take --nocompile")
    if result != _SUM_OF_SQUARES:
        return Finding(FAILED, f"a sum is {result:g}, not {_SUM_OF_SQUARES:g}")
    return Finding(OK, f"a computation on {runtime.num_processors()} processors")


def _normal(name: str) -> str:
    """Returns a package's name as the lock writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _line(text: object) -> str:
    """Returns what an error says in one line of moderate length."""
    return " ".join(str(text).split())[:_LONGEST]


class _Parser(argparse.ArgumentParser):
    """absl's flags are a package, which may be missing."""

    def error(self, message: str) -> NoReturn:
        self.exit(_MISTAKE, f"error: {message}\n")


def main() -> int:
    """Makes all checks and prints what they find; returns the exit status."""
    parser = _Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--data_dir", help="A folder of data, to see what is there.")
    parser.add_argument("--output_dir", default="results", help="Where runs are to be written.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument("--helpfull", action="help", help="The same as --help.")
    given = parser.parse_args()
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # As in `launch`.
    entries: list[dict[str, Any]] = []
    for name, finding, seconds in examine(given.output_dir, given.data_dir):
        entries.append({"check": name, **finding._asdict(), "seconds": seconds})
        line = f"{finding.status:8} {name}: {finding.what.rstrip('.')}"
        if not given.json:
            print(f"{line}; {finding.advice}" if finding.advice else line, flush=True)
    failed, warnings = (sum(e["status"] == s for e in entries) for s in (FAILED, WARNING))
    if given.json:
        json.dump({"failed": failed, "warnings": warnings, "checks": entries}, sys.stdout)
        print()
    else:
        print(f"{len(entries)} checks: {failed} failed, {warnings} warnings")
    return int(failed > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)

"""Checks of the machine: system, packages, processors, memory, disk, data."""

from __future__ import annotations

import fcntl
import functools
import gzip
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence

from experiments.health.examination import FAILED, OK, WARNING, Asked, Check, Finding, line_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
_GB = 10**9
# A small run peaks at about a gigabyte, of which TensorFlow Federated is half.
_MEMORY_NEEDED, _MEMORY_OF_USE = 1 * _GB, 2 * _GB
_DISK_NEEDED, _DISK_OF_USE = 0.1 * _GB, 2 * _GB
_INSTALL = "type: make install"
_PINNED = re.compile(r"^([\w.-]+)==([^\s;]+)(?: *; *(.*?))? *\\?$", re.MULTILINE)
# Where each command's data are described, and the commands that read a folder of them.
_DATA = {
    "stackoverflow": ("fedpersonal.tasks.next_word.source", "make stackoverflow, make table2"),
    "reddit": ("fedpersonal.tasks.documents.task", "make reddit, make table3"),
    "tv_shows": ("fedpersonal.tasks.utterances.source", "make tv_shows, make fedperc_tables"),
}


def check_platform(asked: Asked) -> Finding:
    """Checks that TensorFlow Federated has packages for this system."""
    said = _find_python().stderr.strip()
    if "Linux" in said:
        return Finding(FAILED, said, "take such a machine, or a container on it")
    libc = " ".join(platform.libc_ver())
    return Finding(OK, f"{platform.system()} {platform.machine()}, {libc}")


def check_python(asked: Asked) -> Finding:
    """Checks the version of this Python."""
    what = f"{platform.python_version()}, {sys.executable}"
    if (3, 9) <= sys.version_info[:2] <= (3, 11):
        return Finding(OK, what)
    other = _find_python()
    found = f"type: make install PYTHON={other.stdout.strip()}"
    what = f"{what}; 3.9, 3.10 or 3.11 is needed"
    return Finding(FAILED, what, other.stderr.strip() if other.returncode else found)


def check_environment(asked: Asked) -> Finding:
    """Checks that the virtual environment is this Python's, and holds what the lock says."""
    folder = ROOT / ".venv"
    installed, lock = folder / "installed", ROOT / "requirements" / "lock.txt"
    if pathlib.Path(sys.prefix).resolve() != folder.resolve():
        what = f"this Python is that of {sys.prefix}, not of {folder}"
        advice = "go on if you want that" if folder.is_dir() else _INSTALL
        return Finding(WARNING, what, advice)
    if not installed.exists():
        return Finding(FAILED, f"{folder}: its installation did not come to an end", _INSTALL)
    if installed.read_bytes() != lock.read_bytes():
        return Finding(WARNING, f"{folder} was installed from another lock", _INSTALL)
    return Finding(OK, f"{folder} was installed from the lock")


def check_packages(asked: Asked) -> Finding:
    """Compares the installed packages with the lock; with that of clusters, too, if Ray is here."""
    from packaging.markers import Marker

    names = ["lock.txt", *(["cluster_lock.txt"] if importlib.util.find_spec("ray") else [])]
    pinned: dict[str, str] = {}
    for name in names:
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        for package, version, marker in _PINNED.findall(text):
            if not marker or Marker(marker).evaluate():
                pinned[package] = version
    missing, different = [], []
    for package, version in pinned.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
        else:
            if found != version:
                different.append(f"{package} {found} ({version})")
    if missing:
        return Finding(FAILED, f"of {len(pinned)}, missing: {_some(missing)}", _INSTALL)
    if different:
        what = f"{len(pinned)}, in other versions than the lock's: {_some(different)}"
        return Finding(WARNING, what, _INSTALL)
    return Finding(OK, f"{len(pinned)} in the versions of the lock")


def check_processors(asked: Asked) -> Finding:
    """Says how many processors there are for this process, and the shards that follow."""
    from fedpersonal.runtime.processors import count_processors

    count, there = count_processors(), os.cpu_count() or 1
    limit = ""
    if count < there:
        by_affinity = count == len(os.sched_getaffinity(0))
        limit = f" (limited by {'affinity' if by_affinity else 'the quota of a container'})"
    what = f"{count} of {there}{limit}: {count} shards a round, or as --shards says"
    return Finding(OK, what)


def check_memory(asked: Asked) -> Finding:
    """Says how much memory is free, and the models that it allows."""
    from fedpersonal.process import memory
    from fedpersonal.runtime.processors import count_processors

    free, shards = memory.free_bytes(), count_processors()
    largest = memory.largest_model_bytes(free, shards)
    what = f"{free / _GB:.1f} GB free"
    if free < _MEMORY_NEEDED:
        return Finding(FAILED, f"{what}; a small run takes 1 GB", "end other programs")
    what += f": up to {largest / _GB:.2g} GB of global variables in {shards} shards"
    if free < _MEMORY_OF_USE:
        return Finding(WARNING, what, "take few shards and small embeddings")
    return Finding(OK, what)


def check_output(asked: Asked) -> Finding:
    """Checks that runs can be written and locked, and how much room there is."""
    return _check_room(asked.output_dir, "name another by --output_dir")


def check_temporary(asked: Asked) -> Finding:
    """Checks the same of the folder for temporary files."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding(FAILED, line_of(error.strerror), "make room there, or set TMPDIR")
    return _check_room(folder, "set TMPDIR to another")


def check_ratings(asked: Asked) -> Finding:
    """Looks for ratings: MovieLens-1M in the folder of data, or MovieLens-100K in the packages."""
    from fedpersonal.data.ratings import movielens

    if asked.data_dir is None:
        ratings = movielens.load_movielens_100k()
        return Finding(OK, f"{ratings.summary()}: make movielens")
    names, commands = movielens.MOVIELENS_1M_FILES, "python -m experiments.movielens, make table1"
    return _check_files(asked.data_dir, names, commands, "MovieLens-100K")


def check_texts(asked: Asked, *, command: str) -> Finding:
    """Looks for the texts of a command in the folder of data."""
    module, commands = _DATA[command]
    sources = importlib.import_module(module).SOURCES
    if asked.data_dir is None:
        return Finding(OK, f"made up, as no --data_dir is given: make {command}")
    names = [name for group in sources.files.values() for name in group]
    return _check_files(asked.data_dir, names, commands, "made-up texts")


CHECKS = (
    Check("platform", check_platform),
    Check("Python", check_python),
    Check("environment", check_environment),
    Check("packages", check_packages),
    Check("processors", check_processors),
    Check("memory", check_memory),
    Check("output folder", check_output),
    Check("temporary folder", check_temporary),
    Check("ratings", check_ratings, 60.0),
    *(
        Check(f"texts of {command}", functools.partial(check_texts, command=command), 60.0)
        for command in _DATA
    ),
)


def _find_python() -> subprocess.CompletedProcess[str]:
    """Asks for a Python that the packages can be installed with."""
    return subprocess.run(
        [ROOT / "scripts" / "find_python.sh"], capture_output=True, text=True, check=False
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _check_room(name: str, advice: str) -> Finding:
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
    if free < _DISK_OF_USE:
        return Finding(WARNING, what, f"make room for large runs, or {advice}")
    return Finding(OK, what)


def _check_files(folder: str, names: Sequence[str], commands: str, without: str) -> Finding:
    """Looks for some files in a folder, and into those that are there."""
    if not os.path.isdir(folder):
        return Finding(FAILED, f"{folder} is not a folder", "name another by --data_dir")
    found = [name for name in names if os.path.isfile(os.path.join(folder, name))]
    if not found:
        what = f"{folder} has no {' or '.join(names)}"
        return Finding(WARNING, what, f"without --data_dir there is {without}")
    for name in found:
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                packed = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
                reason = "" if packed.read(1024) else "it is empty"
        except (OSError, EOFError, zlib.error) as error:
            reason = line_of(getattr(error, "strerror", None) or error)
        if reason:
            return Finding(FAILED, f"{path} cannot be read: {reason}", "get the file again")
    return Finding(OK, f"{folder} has {', '.join(found)}: {commands}")

"""Runs that can be hurt: what is asked, a process that does a part of it, and what comes out."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import psutil

ROOT = pathlib.Path(__file__).parents[2]
# Every process of a session has this in its environment, whoever started it.
_MARK = "FEDPERSONAL_SOAK"
_PATIENCE_SECONDS = 900
_ORPHAN_SECONDS = 20


_sessions: list[Session] = []
_is_over = threading.Event()


def end_all() -> None:
    """Ends what runs, and lets nothing more begin."""
    _is_over.set()
    for session in _sessions:
        session.kill()


class Fault(Exception):
    """A run that failed after what was done to it."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A run to be hurt.

    Attributes:
        name: Its name.
        binary: The module of `experiments`.
        options: Its flags.
        rounds: Its rounds.
        rounds_per_checkpoint: Rounds from one checkpoint to the next.
        runtime: Where it runs.
        weight: How often it is drawn, beside others.
    """

    name: str
    binary: str
    options: tuple[str, ...]
    rounds: int
    rounds_per_checkpoint: int
    runtime: str = "local"
    weight: int = 2

    def arguments(self, folder: pathlib.Path) -> list[str]:
        """Returns what follows `python`."""
        return [
            *("-m", f"experiments.{self.binary}", *self.options),
            *(f"--total_rounds={self.rounds}", f"--rounds_per_eval={self.rounds // 3}"),
            *(f"--rounds_per_checkpoint={self.rounds_per_checkpoint}", "--shards=2"),
            *(f"--runtime={self.runtime}", f"--output_dir={folder}"),
        ]


def _preset(name: str) -> str:
    return f"--flagfile={ROOT}/experiments/presets/{name}.flags"


_PRIVATE = (
    *("--weighting=uniform", "--client_sampling=poisson", "--dp_noise_multiplier=1"),
    *("--dp_clipping=adaptive", "--dp_clip_norm=0.1"),
)
_RATINGS = Case("movielens", "movielens", (_preset("movielens_quick"),), 60, 7)
_WORDS = Case("stackoverflow", "stackoverflow", (_preset("stackoverflow_generated"),), 9, 2)
_TEXTS = Case("reddit", "reddit", (_preset("reddit_quick"),), 30, 4)
_DIALOGUES = Case("tv_shows", "tv_shows", (_preset("tv_shows_quick"),), 6, 1)
CASES = (
    dataclasses.replace(_RATINGS, weight=3),
    dataclasses.replace(_RATINGS, name="movielens, worker", runtime="worker"),
    dataclasses.replace(_RATINGS, name="movielens, private", options=_RATINGS.options + _PRIVATE),
    _WORDS,
    dataclasses.replace(_TEXTS, weight=3),
    dataclasses.replace(_TEXTS, name="reddit, worker", runtime="worker"),
    _DIALOGUES,
)
ON_RAY = dataclasses.replace(_TEXTS, name="reddit, ray", runtime="ray")


class Session:
    """A process that begins a run, or goes on with it.

    Attributes:
        case: The run.
        folder: The run's folder.
        process: The process, which leads a session of the system's.
    """

    def __init__(
        self,
        case: Case,
        folder: pathlib.Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
    ):
        """Starts it.

        Args:
            case: The run.
            folder: The run's folder. Files of the session are kept beside it.
            *options: More flags.
            environment: More environment variables.
        """
        self.case, self.folder = case, folder
        number = len(list(folder.parent.glob("session*")))
        self._beside = folder.parent / f"session{number}"
        for name in ("home", "tmp"):
            (self._beside / name).mkdir(parents=True)
        self._mark = str(self._beside)
        if _is_over.is_set():
            raise Fault("all is over")
        # Its few lines fit into a pipe; a file could not grow where the disk is full.
        self.process = subprocess.Popen(
            [sys.executable, *case.arguments(folder), *options],
            cwd=ROOT,
            env={
                **os.environ,
                **{_MARK: self._mark, "TF_CPP_MIN_LOG_LEVEL": "3"},
                **{"HOME": f"{self._beside}/home", "TMPDIR": f"{self._beside}/tmp"},
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        _sessions.append(self)

    def wait_for(self, *, seconds: float = 0.0, rounds: int = 0) -> bool:
        """Waits until a time has passed and a round is done; returns False if it ended before."""
        begun = time.monotonic()
        while self.process.poll() is None:
            spent = time.monotonic() - begun
            if spent > _PATIENCE_SECONDS:
                raise Fault(f"no round {rounds} after {spent:.0f} s")
            if spent >= seconds and _rounds_done(self.folder) >= rounds:
                return True
            time.sleep(0.01)
        return False

    def family(self) -> list[psutil.Process]:
        """Returns the processes below this one."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def end(self) -> tuple[int, str]:
        """Waits for its end; returns its status and what it wrote on the standard error."""
        try:
            _, errors = self.process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Fault(f"has not ended within {_PATIENCE_SECONDS} s") from error
        finally:
            self.kill()
        self._check(errors)
        return self.process.returncode, errors

    def kill(self) -> None:
        """Ends it if it is still there."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _check(self, errors: str) -> None:
        """Raises `Fault` for a traceback, an orphan, or a file where none belongs."""
        if "Traceback" in errors:
            raise Fault(f"a traceback:\n{errors[-3000:]}")
        if self.process.returncode == 2 and not re.search("^error: ", errors, re.MULTILINE):
            raise Fault(f"refuses without a line:\n{errors[-3000:]}")
        deadline = time.monotonic() + _ORPHAN_SECONDS
        while orphans := self._orphans():
            if time.monotonic() > deadline:
                told = [orphan.as_dict(["pid", "name"]) for orphan in orphans]
                for orphan in orphans:
                    orphan.kill()
                psutil.wait_procs(orphans, 10)
                raise Fault(f"orphans: {told}")
            time.sleep(0.2)
        left = ["home", *(["tmp"] if self.process.returncode >= 0 else [])]
        strangers = [p for name in left for p in (self._beside / name).rglob("*")]
        # TensorFlow's, where the disk was full.
        strangers = [p for p in strangers if "__autograph_generated" not in p.name]
        if strangers:
            raise Fault(f"leaves {strangers}")

    def _orphans(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                is_ours = process.environ().get(_MARK) == self._mark
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _rounds_done(folder: pathlib.Path) -> int:
    try:
        with open(folder / "metrics.csv", "rb") as file:
            return sum(1 for _ in file) - 1
    except OSError:
        return 0


def outcome(folder: pathlib.Path) -> dict[str, object]:
    """Returns all of a run's folder that must not depend on what happened on the way."""
    files = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("events.") and path.name != ".lock"
    }
    # Which round was saved before the last one depends on when the run was stopped.
    saved = sorted(name for name in files if name.startswith("checkpoints/"))
    found: dict[str, object] = {"names of files": sorted({*files} - {*saved[:-1]})}
    for name, path in files.items():
        if name == "metrics.csv":
            with path.open(encoding="utf-8", newline="") as lines:
                found[name] = [timeless(row) for row in csv.DictReader(lines)]
        elif name in ("summary.json", "config.json", "model.json"):
            found[name] = timeless(json.loads(path.read_text()))
        elif name == "model.npz":
            with np.load(path, allow_pickle=False) as arrays:
                found[name] = {one: arrays[one] for one in arrays.files}
        elif name.endswith(".sqlite"):
            with contextlib.closing(sqlite3.connect(path)) as connection:
                found[name] = connection.execute("SELECT rowid, * FROM local_state").fetchall()
        elif path.suffix in (".csv", ".json"):
            found[name] = path.read_bytes()
    return found


def differences(
    found: Mapping[str, Any], expected: Mapping[str, Any], *, is_exact: bool
) -> list[str]:
    """Returns the parts of two outcomes that differ.

    Args:
        found: The one.
        expected: The other.
        is_exact: Whether every bit counts. Else losses and weights may differ in their last digits,
            and what follows from these is not compared: TFF's worker is not exact on a busy
            machine.
    """
    names = sorted({*found, *expected})
    if not is_exact:
        names = [name for name in names if name in _NEARLY or "names" in name]
    return [
        name
        for name in names
        if name not in found
        or name not in expected
        or not _are_same(found[name], expected[name], is_exact)
    ]


# What can be compared if last digits may differ.
_NEARLY = ("metrics.csv", "model.npz", "config.json", "boundary.json")


def _are_same(one: Any, other: Any, is_exact: bool) -> bool:
    if isinstance(one, np.ndarray):
        if is_exact or one.dtype.kind != "f":
            return one.dtype == other.dtype and one.tobytes() == other.tobytes()
        return one.shape == other.shape and np.allclose(one, other, rtol=1e-2, atol=1e-3)
    if isinstance(one, dict):
        names = [n for n in one if is_exact or "accuracy" not in n]
        return set(one) == set(other) and all(_are_same(one[n], other[n], is_exact) for n in names)
    if isinstance(one, list):
        return len(one) == len(other) and all(_are_same(*p, is_exact) for p in zip(one, other))
    if not is_exact and isinstance(one, str) and one != other:
        try:
            return abs(float(one) - float(other)) <= 1e-3 * abs(float(other))
        except ValueError:
            return False
    return one == other


def timeless(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out what is measured of the machine, and the digests of such."""
    measured = ("seconds", "rss", "digest", "metrics", "runtime", "ray", "output_dir")
    return {
        name: timeless(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if not any(word in name for word in measured)
    }

"""Test of determinism: whether a command gives equal bytes under load and when interrupted.

    python -m benchmarks.determinism --runs=20

Busy loops share the processors with the runs. SIGTERM ends some of the runs after their first
checkpoint; they are then resumed. Prints a line of JSON: the number of runs with each outcome. An
outcome is a hash of the last checkpoint's arrays and of `metrics.csv` without its times. Exits with
status 1 if there are several outcomes. Arguments after `--` are passed to `experiments.movielens`.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from absl import flags

FLAGS = flags.FLAGS

flags.DEFINE_integer("runs", 4, "Number of runs.", lower_bound=2)
flags.DEFINE_integer("interrupted", None, "Number of interrupted runs. [default: half]")
flags.DEFINE_integer("jobs", 2, "Parallel runs.", lower_bound=1)
flags.DEFINE_integer("busy_loops", 2, "Busy loops per processor.", lower_bound=0)
flags.DEFINE_integer("total_rounds", 200, "Rounds of a run.", lower_bound=10)

SECONDS = "seconds"


def main(arguments: list[str]) -> None:
    """Starts all runs and compares their outcomes."""
    interrupted = FLAGS.runs // 2 if FLAGS.interrupted is None else FLAGS.interrupted
    with tempfile.TemporaryDirectory() as folder, _load():
        paths = [pathlib.Path(folder, f"run{number}") for number in range(FLAGS.runs)]
        for start in range(0, len(paths), FLAGS.jobs):
            parallel = paths[start : start + FLAGS.jobs]
            first = {path: _begin(path, arguments) for path in parallel}
            for path in parallel:
                if paths.index(path) < interrupted:
                    _interrupt(first[path], path)
            resumed = [_begin(path, arguments) for path in parallel if first[path].wait()]
            for process in resumed:
                _, errors = process.communicate()
                if process.returncode:
                    sys.exit(f"a run has failed:\n{errors}")
        outcomes: dict[str, int] = {}
        for path in paths:
            outcome = _outcome(path)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    about = {"runs": FLAGS.runs, "interrupted": interrupted, "rounds": FLAGS.total_rounds}
    print(json.dumps({**about, "options": arguments, "outcomes": outcomes}))
    sys.exit(len(outcomes) > 1)


@contextlib.contextmanager
def _load() -> Iterator[None]:
    """Keeps the processors busy."""
    count = FLAGS.busy_loops * len(os.sched_getaffinity(0))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _begin(path: pathlib.Path, arguments: list[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "experiments.movielens", f"--output_dir={path}"]
    preset = "--flagfile=experiments/presets/movielens_quick.flags"
    rounds = [
        f"--total_rounds={FLAGS.total_rounds}",
        f"--rounds_per_checkpoint={FLAGS.total_rounds // 10}",
    ]
    return subprocess.Popen(
        [*command, preset, *rounds, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _interrupt(process: subprocess.Popen, path: pathlib.Path) -> None:
    """Ends a run once it has saved a round, unless it has finished by then."""
    first = "round_000000.npz"
    while process.poll() is None:
        if any(one.name != first for one in (path / "checkpoints").glob("*.npz")):
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


def _outcome(path: pathlib.Path) -> str:
    import numpy as np

    digest = hashlib.sha256()
    last = max((path / "checkpoints").glob("*.npz"))
    with np.load(last) as arrays:
        for name in sorted(set(arrays.files) - {"description"}):  # The description has times.
            digest.update(name.encode() + arrays[name].tobytes())
    with open(path / "metrics.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rest = {name: value for name, value in row.items() if SECONDS not in name}
            digest.update(json.dumps(rest).encode())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main(FLAGS(sys.argv)[1:])

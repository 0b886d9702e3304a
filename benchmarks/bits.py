"""Comparison of two versions of the code: whether their results are bitwise equal.

    python -m benchmarks.bits --output=before.json
    python -m benchmarks.bits --against=before.json

Every pair of task and method that `tests/suite/tasks/contract_test.py` runs trains for two rounds
and is tested, with and without XLA, in one shard and in two. The file has a line for each of:
global weights, kept values, `per_client.csv`, and `metrics.csv` without its times. Names and order
do not matter: columns and variables may be renamed. Two pairs run in parallel. `--against` prints
the differences, and exits with status 1 if there are any.

Both versions must run on the same machine with the same packages, since others round differently.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import csv
import gc
import hashlib
import json
import multiprocessing
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any
from unittest import mock

import numpy as np
from absl import flags

from benchmarks.tiny import make_base, pairs_with, tiny_options, write_tables
from fedpersonal.suite.testing import open_folder, train

FLAGS = flags.FLAGS

if __name__ == "__main__":
    flags.DEFINE_string("output", None, "The file to write.")
    flags.DEFINE_string("against", None, "A file of another version; differences are printed.")
    flags.DEFINE_string("only", "", "Only pairs with this text in `task method`. [default: all]")
    flags.DEFINE_integer("times", 1, "Runs of each pair; differences are reported.", lower_bound=1)
    flags.DEFINE_integer("processes", 2, "Pairs that run in parallel.", lower_bound=1)

# Word in the file to whether XLA compiles.
COMPILED = {"compiled": True, "plain": False}
SHARDS = (1, 2)
UNEQUAL = "unequal: "


def main() -> None:
    """Runs all pairs, writes their hashes and compares them."""
    pairs = pairs_with(FLAGS.only)
    pairs.sort(key=lambda pair: pair[0], reverse=True)  # Language models take longest.
    if not pairs:
        sys.exit(f"no pair has {FLAGS.only!r} in its name")
    hashes: dict[str, str] = {}
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(FLAGS.processes, spawn) as pool:
        began = time.monotonic()
        waiting = [pool.submit(measure, *pair, FLAGS.times) for pair in pairs]
        for done in concurrent.futures.as_completed(waiting):
            hashes.update(done.result())
            finished = sum(one.done() for one in waiting)
            passed = time.monotonic() - began
            print(f"{finished} of {len(pairs)} pairs, {passed:.0f} s", file=sys.stderr, flush=True)
            if FLAGS.output:  # Keeps results of finished pairs if the program is stopped.
                text = json.dumps(hashes, indent=0, sort_keys=True) + "\n"
                pathlib.Path(FLAGS.output).write_text(text, encoding="utf-8")
    if not FLAGS.output and not FLAGS.against:
        print(json.dumps(hashes, indent=0, sort_keys=True))
    unequal = [name for name, value in hashes.items() if value.startswith(UNEQUAL)]
    for name in sorted(unequal):
        print(f"{name}: two runs of this version differ", file=sys.stderr)
    differences = []
    if FLAGS.against:
        expected = json.loads(pathlib.Path(FLAGS.against).read_text(encoding="utf-8"))
        expected = {k: v for k, v in expected.items() if FLAGS.only in k.split(",")[0]}
        differences = compare(hashes, expected)
        print("\n".join(differences) or f"{len(hashes)} hashes are equal")
    sys.exit(bool(differences))


def compare(hashes: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Returns a line for each hash that differs, or that only one version has."""
    lines = []
    for name in sorted({*hashes, *expected}):
        if name not in hashes or name not in expected:
            lines.append(f"{name}: only {'before' if name in expected else 'now'}")
        elif hashes[name] != expected[name]:
            now, then = (collections.Counter(one[name].split()) for one in (hashes, expected))
            same, before, after = (sum(c.values()) for c in (now & then, then - now, now - then))
            lines.append(f"{name}: {same} equal, {before} only before, {after} only now")
    return lines


def measure(task: str, method: str, times: int) -> dict[str, str]:
    """Runs a pair with and without XLA and in each number of shards; returns its hashes."""
    from fedpersonal.suite.tasks.find import all_tasks
    from fedpersonal.suite.tasks.utterances import task as utterances

    hashes, tasks = {}, all_tasks()
    # The fewest sample counts with which all phases run.
    samples = mock.patch.object(utterances, "SAMPLES", (1, None))
    with tempfile.TemporaryDirectory() as name, samples:
        folder = pathlib.Path(name)
        write_tables(folder)
        base = make_base(folder / "tiny").source if task == "tv_shows" else None
        options = tiny_options(tasks[task], folder, base, method=method)
        for word, compile in COMPILED.items():
            for shards in SHARDS:
                places = [folder / f"{word}{shards}_{number}" for number in range(times)]
                runs = [_run(tasks[task], options, place, compile, shards) for place in places]
                for file, value in runs[0].items():
                    values = sorted({run[file] for run in runs})
                    text = value if len(values) == 1 else UNEQUAL + " or ".join(values)
                    hashes[f"{task} {method}, {word}, shards {shards}: {file}"] = text
    return hashes


def _run(task: Any, options: Any, path: pathlib.Path, compile: bool, shards: int) -> dict[str, str]:
    from fedpersonal import runtime
    from fedpersonal.suite.tasks.experiment import build_experiment
    from fedpersonal.suite.tasks.running import run_experiment

    runtime.use_runtime("local", compile=compile)
    seed_all()
    experiment = build_experiment(task, task.read(options), options, shards=shards)
    run_experiment(experiment, open_folder(path, experiment), progress=False)
    trained = train(experiment, path)
    arrays = trained.arrays()
    kept = [arrays.pop(name) for name in [*arrays] if name.startswith("kept ")]
    hashes = {
        "global weights": _hashes(arrays.values()),
        "kept values": _hashes(kept if trained.has_kept is None else [trained.has_kept, *kept]),
        "per_client.csv": _hashes(_columns(path / "per_client.csv")),
        "metrics.csv": _hashes(_columns(path / "metrics.csv")),
    }
    del experiment, trained
    gc.collect()
    return hashes


def seed_all() -> None:
    """Seeds random numbers without an explicit seed, such as those of Keras' initializers."""
    import tensorflow as tf

    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)


def _columns(path: pathlib.Path) -> list[np.ndarray]:
    """Returns the columns of a table, without durations."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in (rows[0] if rows else ()) if "second" not in name]
    return [_numbers([row[name] for row in rows]) for name in names]


def _numbers(texts: list[str]) -> np.ndarray:
    with contextlib.suppress(ValueError):
        return np.array([float(text) if text else np.nan for text in texts])
    return np.array(texts)


def _hashes(arrays: Iterable[np.ndarray]) -> str:
    """Returns a short hash of each array, sorted, since names do not matter."""
    hashes = []
    for array in map(np.asarray, arrays):
        about = f"{array.dtype.kind}{array.shape}".encode()
        hashes.append(hashlib.sha256(about + array.tobytes()).hexdigest()[:8])
    return " ".join(sorted(hashes)) or "none"


if __name__ == "__main__":
    FLAGS(sys.argv)
    main()

"""Whether two versions of the code lead to the same numbers, bit by bit.

    python -m benchmarks.bits --output=before.json
    python -m benchmarks.bits --against=before.json

Every pair of task and method that `tests/tasks/contract_test.py` runs trains for two rounds and is
tested, compiled and not, in one shard and in two. The file has a line for each of: global weights,
kept values, `per_client.csv`, and `metrics.csv` without its times. What numbers are called does not
matter, nor does their order: columns and variables may have other names. Two pairs are measured at
the same time. `--against` prints what differs, and exits with status 1 if anything does.

The same machine and the same packages are meant: others round differently.
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
from fedpersonal.testing import open_folder, train

FLAGS = flags.FLAGS

if __name__ == "__main__":
    flags.DEFINE_string("output", None, "The file to write.")
    flags.DEFINE_string("against", None, "A file of another version; what differs is printed.")
    flags.DEFINE_string("only", "", "Pairs with this in `task method`; of all, if left out.")
    flags.DEFINE_integer("times", 1, "Runs of each; unequal ones are told.", lower_bound=1)
    flags.DEFINE_integer("processes", 2, "Pairs at the same time.", lower_bound=1)

# By the word for it in the file.
COMPILED = {"compiled": True, "plain": False}
SHARDS = (1, 2)
UNEQUAL = "unequal: "


def main() -> None:
    """Measures, writes and compares."""
    pairs = pairs_with(FLAGS.only)
    pairs.sort(key=lambda pair: pair[0], reverse=True)  # Language models take longest.
    if not pairs:
        sys.exit(f"no pair has {FLAGS.only!r} in its name")
    found: dict[str, str] = {}
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(FLAGS.processes, spawn) as pool:
        began = time.monotonic()
        waiting = [pool.submit(measure, *pair, FLAGS.times) for pair in pairs]
        for done in concurrent.futures.as_completed(waiting):
            found.update(done.result())
            finished = sum(one.done() for one in waiting)
            passed = time.monotonic() - began
            print(f"{finished} of {len(pairs)} pairs, {passed:.0f} s", file=sys.stderr, flush=True)
            if FLAGS.output:  # So far: some of it is better than none, if this is stopped.
                text = json.dumps(found, indent=0, sort_keys=True) + "\n"
                pathlib.Path(FLAGS.output).write_text(text, encoding="utf-8")
    if not FLAGS.output and not FLAGS.against:
        print(json.dumps(found, indent=0, sort_keys=True))
    unequal = [name for name, value in found.items() if value.startswith(UNEQUAL)]
    for name in sorted(unequal):
        print(f"{name}: two runs of this version differ already", file=sys.stderr)
    differ = []
    if FLAGS.against:
        expected = json.loads(pathlib.Path(FLAGS.against).read_text(encoding="utf-8"))
        expected = {k: v for k, v in expected.items() if FLAGS.only in k.split(",")[0]}
        differ = compare(found, expected)
        print("\n".join(differ) or f"{len(found)} hashes are the same")
    sys.exit(bool(differ))


def compare(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Returns a line for each hash that differs, or that only one of them has."""
    lines = []
    for name in sorted({*found, *expected}):
        if name not in found or name not in expected:
            lines.append(f"{name}: only {'before' if name in expected else 'now'}")
        elif found[name] != expected[name]:
            now, then = (collections.Counter(one[name].split()) for one in (found, expected))
            same, before, after = (sum(c.values()) for c in (now & then, then - now, now - then))
            lines.append(f"{name}: {same} the same, {before} only before, {after} only now")
    return lines


def measure(task: str, method: str, times: int) -> dict[str, str]:
    """Runs a pair in all ways, and returns its hashes."""
    from fedpersonal.tasks.find import all_tasks
    from fedpersonal.tasks.utterances import task as utterances

    found, tasks = {}, all_tasks()
    # Of the counts of samples as many as show which phases run.
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
                    told = value if len(values) == 1 else UNEQUAL + " or ".join(values)
                    found[f"{task} {method}, {word}, shards {shards}: {file}"] = told
    return found


def _run(task: Any, options: Any, path: pathlib.Path, compile: bool, shards: int) -> dict[str, str]:
    from fedpersonal import runtime
    from fedpersonal.tasks.experiment import build_experiment
    from fedpersonal.tasks.running import run_experiment

    runtime.use_runtime("local", compile=compile)
    seed_all()
    experiment = build_experiment(task, task.read(options), options, shards=shards)
    run_experiment(experiment, open_folder(path, experiment), progress=False)
    trained = train(experiment, path)
    arrays = trained.arrays()
    kept = [arrays.pop(name) for name in [*arrays] if name.startswith("kept ")]
    found = {
        "global weights": _hashes(arrays.values()),
        "kept values": _hashes(kept if trained.known is None else [trained.known, *kept]),
        "per_client.csv": _hashes(_columns(path / "per_client.csv")),
        "metrics.csv": _hashes(_columns(path / "metrics.csv")),
    }
    del experiment, trained
    gc.collect()
    return found


def seed_all() -> None:
    """Makes draws the same that have no seed of their own, such as of Keras' initializers."""
    import tensorflow as tf

    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)


def _columns(path: pathlib.Path) -> list[np.ndarray]:
    """Returns the columns of a table, without those that say how long something took."""
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
    """Returns a short hash of each, sorted: they have no names."""
    found = []
    for array in map(np.asarray, arrays):
        about = f"{array.dtype.kind}{array.shape}".encode()
        found.append(hashlib.sha256(about + array.tobytes()).hexdigest()[:8])
    return " ".join(sorted(found)) or "none"


if __name__ == "__main__":
    FLAGS(sys.argv)
    main()

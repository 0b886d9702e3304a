"""Comparison of results under the two sets of pinned packages.

    .venv/bin/python -m benchmarks.stacks --output=tff.npz
    .venv/today/bin/python -m benchmarks.stacks --output=today.npz --against=tff.npz

Every pair of task and method that `tests/suite/tasks/contract_test.py` runs trains for ten rounds,
with and without XLA. `--against` prints each pair's largest difference of a weight or kept value.
It exits with status 1 if one is larger than 1e-6 with XLA, or differs in any bit without.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import pathlib
import sys
import tempfile
from collections.abc import Mapping

import numpy as np
from absl import flags

from benchmarks.bits import COMPILED, seed_all
from benchmarks.tiny import make_base, pairs_with, tiny_options, write_tables
from fedpersonal.suite.testing import train

FLAGS = flags.FLAGS

if __name__ == "__main__":
    flags.DEFINE_string("output", None, "The file to write.", required=True)
    flags.DEFINE_string("against", None, "A file of the other packages.")
    flags.DEFINE_string("only", "", "Only pairs with this text in `task method`. [default: all]")
    flags.DEFINE_integer("processes", 2, "Pairs that run in parallel.", lower_bound=1)

_ROUNDS = 10
_BOUND = 1e-6


def main() -> None:
    """Trains all pairs, writes their weights and compares them."""
    pairs = pairs_with(FLAGS.only)
    results: dict[str, np.ndarray] = {}
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(FLAGS.processes, spawn) as pool:
        for arrays in pool.map(measure, *zip(*pairs)):
            results.update(arrays)
            print(f"{len(results)} arrays", file=sys.stderr, flush=True)
    np.savez(FLAGS.output, **results)
    if FLAGS.against:
        with np.load(FLAGS.against) as expected:
            sys.exit(compare(results, expected))


def measure(task: str, method: str) -> dict[str, np.ndarray]:
    """Trains a pair without and with XLA, and returns its weights and kept values."""
    from fedpersonal import runtime
    from fedpersonal.suite.tasks.experiment import build_experiment
    from fedpersonal.suite.tasks.find import all_tasks

    results, entry = {}, all_tasks()[task]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tables(folder)
        base = make_base(folder / "tiny").source if task == "tv_shows" else None
        options = tiny_options(entry, folder, base, method=method)
        for word, compile in COMPILED.items():
            runtime.use_runtime("local", compile=compile)
            seed_all()
            # With more shards, the order of sums would depend on the machine.
            experiment = build_experiment(entry, entry.read(options), options, shards=1)
            trained = train(experiment, folder / word, rounds=_ROUNDS)
            for key, value in trained.arrays().items():
                results[f"{task} {method}, {word}: {key}"] = value
    return results


def compare(results: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> int:
    """Prints the largest difference of each pair; returns whether one exceeds the bound."""
    apart: dict[str, float] = {}
    for name, value in results.items():
        pair, other = name.split(":")[0], expected[name]
        difference = np.abs(value.astype(np.float64) - other).max(initial=0.0)
        apart[pair] = max(apart.get(pair, 0.0), float(difference))
    wrong = [pair for pair, far in apart.items() if far > (_BOUND if "compiled" in pair else 0.0)]
    for pair, far in apart.items():
        print(f"{pair}: {far:.2g}{'  <--' if pair in wrong else ''}")
    print(f"{len(apart) - len(wrong)} of {len(apart)} are within the bound")
    return bool(wrong)


if __name__ == "__main__":
    FLAGS(sys.argv)
    main()

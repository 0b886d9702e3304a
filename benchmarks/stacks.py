"""How far the two sets of pinned packages lead apart.

    .venv/bin/python -m benchmarks.stacks --output=tff.npz
    .venv/today/bin/python -m benchmarks.stacks --output=today.npz --against=tff.npz

Every pair of task and method that `tests/tasks/contract_test.py` runs trains for ten rounds, plain
and compiled. `--against` prints for each the largest difference of a global weight or kept value,
and exits with status 1 where one is larger than 1e-6, or the bits of a plain one differ.
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
from fedpersonal.testing import train

FLAGS = flags.FLAGS

if __name__ == "__main__":
    flags.DEFINE_string("output", None, "The file to write.", required=True)
    flags.DEFINE_string("against", None, "A file of the other packages.")
    flags.DEFINE_string("only", "", "Pairs with this in `task method`; of all, if left out.")
    flags.DEFINE_integer("processes", 2, "Pairs at the same time.", lower_bound=1)

_ROUNDS = 10
_BOUND = 1e-6


def main() -> None:
    """Measures, writes and compares."""
    pairs = pairs_with(FLAGS.only)
    found: dict[str, np.ndarray] = {}
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(FLAGS.processes, spawn) as pool:
        for arrays in pool.map(measure, *zip(*pairs)):
            found.update(arrays)
            print(f"{len(found)} arrays", file=sys.stderr, flush=True)
    np.savez(FLAGS.output, **found)
    if FLAGS.against:
        with np.load(FLAGS.against) as expected:
            sys.exit(compare(found, expected))


def measure(task: str, method: str) -> dict[str, np.ndarray]:
    """Trains a pair, plain and compiled, and returns its weights and kept values."""
    from fedpersonal import runtime
    from fedpersonal.tasks.experiment import build_experiment
    from fedpersonal.tasks.find import all_tasks

    found, of = {}, all_tasks()[task]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tables(folder)
        base = make_base(folder / "tiny").source if task == "tv_shows" else None
        options = tiny_options(of, folder, base, method=method)
        for word, compile in COMPILED.items():
            runtime.use_runtime("local", compile=compile)
            seed_all()
            # Else what is added up depends on the machine.
            experiment = build_experiment(of, of.read(options), options, shards=1)
            trained = train(experiment, folder / word, rounds=_ROUNDS)
            for key, value in trained.arrays().items():
                found[f"{task} {method}, {word}: {key}"] = value
    return found


def compare(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> int:
    """Prints how far each pair is apart, and returns how many are too far."""
    apart: dict[str, float] = {}
    for name, value in found.items():
        pair, other = name.split(":")[0], expected[name]
        difference = np.abs(value.astype(np.float64) - other).max(initial=0.0)
        apart[pair] = max(apart.get(pair, 0.0), float(difference))
    wrong = [pair for pair, far in apart.items() if far > (_BOUND if "compiled" in pair else 0.0)]
    for pair, far in apart.items():
        print(f"{pair}: {far:.2g}{'  <--' if pair in wrong else ''}")
    print(f"{len(apart) - len(wrong)} of {len(apart)} are as near as they should be")
    return bool(wrong)


if __name__ == "__main__":
    FLAGS(sys.argv)
    main()

"""Comparison of a preset's rounds with the machine's speed of matrix products.

    python -m benchmarks.texts --preset=stackoverflow_quick
    python -m benchmarks.texts --preset=reddit_paper --data_dir=path/to/data

Prints a line of JSON: the time of a round; its processor time, and that of making its clients'
batches; the billions of multiplications and additions in products of its examples with the model's
matrices, without padding and attention; the machine's rate of these operations in a large product,
and in a product of the model's largest matrix with one batch; and the share of the round's time
that the operations would take at either rate. All figures are of the fastest round, since other
programs may use the machine.
"""

from __future__ import annotations

import json
import math
import pathlib
import tempfile
import time
from typing import Any

from absl import flags

from fedpersonal.suite.commands import launch

FLAGS = flags.FLAGS

flags.DEFINE_string("preset", "reddit_quick", "A preset of experiments/presets with texts.")
flags.DEFINE_string("data_dir", None, "The folder of the texts. [default: generated texts]")
flags.DEFINE_string("base_model", None, "The base model, for presets of experiments.tv_shows.")
flags.DEFINE_integer("rounds", 30, "Timed rounds.", lower_bound=1)

# Prefix of a preset's name to task.
TASKS = {"films": "reddit", "reddit": "reddit", "stackoverflow": "stackoverflow", "tv": "tv_shows"}
LARGE, WARM = 2048, 3


def main() -> None:
    """Times the rounds and prints the results."""
    from fedpersonal import runtime
    from fedpersonal.suite.commands.option_flags import read_flagfile
    from fedpersonal.suite.tasks.experiment import build_experiment
    from fedpersonal.suite.tasks.find import all_tasks

    task = all_tasks()[TASKS[FLAGS.preset.split("_")[0]]]
    path = pathlib.Path(launch.__file__).parent / "presets" / f"{FLAGS.preset}.flags"
    paths = ("data_dir", "base_model")
    values = {name: FLAGS[name].value for name in paths if FLAGS[name].value}
    options = task.options(**{**read_flagfile(path, task.options), **values})
    runtime.use_runtime("local", compile=True)
    experiment = build_experiment(task, task.read(options), options)
    seconds, processor, packing, operations = min(run_rounds(experiment))
    batch = experiment.options.client_batch_size
    largest = max([(1, 1), *matrices(experiment.model)], key=math.prod)  # May have no matrices.
    large, small = rate(LARGE, LARGE, LARGE), rate(batch, *largest)
    results = {
        "milliseconds": 1e3 * seconds,
        "processor_milliseconds": 1e3 * processor,
        "packing_processor_milliseconds": 1e3 * packing,
        "billions": operations / 1e9,
        "billions_a_second_in_large": large / 1e9,
        "billions_a_second_in_small": small / 1e9,
        "share_of_large": operations / seconds / large,
        "share_of_small": operations / seconds / small,
    }
    about = {"preset": FLAGS.preset, "small": [batch, *largest]}
    print(json.dumps({**about, **{name: round(value, 3) for name, value in results.items()}}))


def run_rounds(experiment: Any) -> list[tuple[float, float, float, float]]:
    """Returns each round's time, processor time, processor time of batches, and operations."""
    from fedpersonal import runtime
    from fedpersonal.runs.kept import Rounds
    from fedpersonal.runs.store import LocalStateStore

    trainer, results = experiment.trainer, []
    with tempfile.TemporaryDirectory() as folder, runtime.shard_threads():
        store = None
        if experiment.algorithm.keeps:
            store = LocalStateStore.open(f"{folder}/kept", trainer.model.local_variables)
        rounds = Rounds(trainer.process, store)
        state = rounds.initialize()
        for number in range(1, FLAGS.rounds + WARM + 1):
            began = time.process_time()
            cohort = trainer.cohort(number)
            packed, before = time.process_time(), time.perf_counter()
            state = rounds.next(state, cohort).state
            times = time.perf_counter() - before, time.process_time() - packed, packed - began
            results.append((*times, count_operations(experiment, cohort)))
        if store:
            store.close()
    return results[WARM:]


def rate(rows: int, inner: int, columns: int) -> float:
    """Returns the machine's highest rate of operations per second in a product."""
    import tensorflow as tf

    left, right, seconds = tf.random.normal([rows, inner]), tf.random.normal([inner, columns]), []
    for _ in range(50):
        began = time.perf_counter()
        tf.matmul(left, right).numpy()
        seconds.append(time.perf_counter() - began)
    return 2 * rows * inner * columns / min(seconds)


def matrices(model: Any) -> list[tuple[int, int]]:
    """Returns the shapes of a model's matrices, without tables and position embeddings."""
    variables = [v for v in model.all_variables if v.name not in model.tables]
    return [tuple(v.shape) for v in variables if len(v.shape) == 2 and "wpe" not in v.name]


def count_operations(experiment: Any, cohort: Any) -> float:
    """Counts operations of products with the matrices.

    These are the forward pass, gradients to inputs, and gradients to trained matrices.
    """
    import numpy as np
    import tensorflow as tf

    from fedpersonal.client.batches import schedule_phase
    from fedpersonal.client.values import moving_names
    from fedpersonal.federated.packing import as_examples

    model, total = experiment.trainer.model, 0.0
    size = sum(rows * columns for rows, columns in matrices(model))
    moved = {v.name for v in model.variables if len(v.shape) == 2} - set(model.tables)
    for packed in cohort.examples:
        examples = as_examples(model, tf.nest.map_structure(tf.constant, packed))
        is_real, places = examples.mask > 0, 1.0
        if model.sequence_length and "num_words" not in model.input_spec:  # A bag is summed first.
            features = {k: tf.boolean_mask(v, is_real) for k, v in examples.features.items()}
            labels = tf.boolean_mask(examples.labels, is_real)
            places = float(np.mean(model.sequence_length(features, labels)))
        for phase in experiment.algorithm.phases:
            count = float(tf.reduce_sum(schedule_phase(phase, examples).num_examples))
            kinds = 3 if moved & set(moving_names(model, phase)) else 2
            total += 2.0 * count * places * kinds * size
    return total


if __name__ == "__main__":
    launch.run(main)

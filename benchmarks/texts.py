"""How near a preset's rounds are to the machine's matrix products.

    python -m benchmarks.texts --preset=stackoverflow_quick
    python -m benchmarks.texts --preset=reddit_paper --data_dir=path/to/data

Prints a line of JSON: the time of a round; its processor time, and that of making its clients'
batches; how many billions of multiplications and additions the products of its examples with the
model's matrices need, without padding and attention; how many a second the machine does in a large
product, and in one of the model's largest matrix with one batch; and which share of the round they
would take at either rate. All is of the quickest round, for others may use the machine.
"""

from __future__ import annotations

import json
import math
import pathlib
import tempfile
import time
from typing import Any

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_string("preset", "reddit_quick", "Of experiments/presets, of texts.")
flags.DEFINE_string("data_dir", None, "As of the experiments. [default: generated texts]")
flags.DEFINE_string("base_model", None, "As of experiments.tv_shows.")
flags.DEFINE_integer("rounds", 30, "Rounds timed.", lower_bound=1)

# The task by how the preset's name begins.
TASKS = {"films": "reddit", "reddit": "reddit", "stackoverflow": "stackoverflow", "tv": "tv_shows"}
LARGE, WARM = 2048, 3


def main() -> None:
    """Times the rounds and prints."""
    from experiments.option_flags import read_flagfile
    from fedpersonal import runtime
    from fedpersonal.tasks.experiment import build_experiment
    from fedpersonal.tasks.find import all_tasks

    task = all_tasks()[TASKS[FLAGS.preset.split("_")[0]]]
    path = pathlib.Path(launch.__file__).parent / "presets" / f"{FLAGS.preset}.flags"
    named = ("data_dir", "base_model")
    given = {name: FLAGS[name].value for name in named if FLAGS[name].value}
    options = task.options(**{**read_flagfile(path, task.options), **given})
    runtime.use_runtime("local", compile=True)
    experiment = build_experiment(task, task.read(options), options)
    seconds, processor, packing, operations = min(run_rounds(experiment))
    batch = experiment.options.client_batch_size
    largest = max([(1, 1), *matrices(experiment.model)], key=math.prod)  # A linear one has none.
    large, small = rate(LARGE, LARGE, LARGE), rate(batch, *largest)
    found = {
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
    print(json.dumps({**about, **{name: round(value, 3) for name, value in found.items()}}))


def run_rounds(experiment: Any) -> list[tuple[float, float, float, float]]:
    """Returns each round's time, processor time, that of its batches, and operations."""
    from fedpersonal import runtime
    from fedpersonal.runs.kept import Rounds
    from fedpersonal.runs.store import LocalStateStore

    trainer, found = experiment.trainer, []
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
            found.append((*times, count_operations(experiment, cohort)))
        if store:
            store.close()
    return found[WARM:]


def rate(rows: int, inner: int, columns: int) -> float:
    """Returns how many operations a second the machine does in a product, at best."""
    import tensorflow as tf

    left, right, taken = tf.random.normal([rows, inner]), tf.random.normal([inner, columns]), []
    for _ in range(50):
        began = time.perf_counter()
        tf.matmul(left, right).numpy()
        taken.append(time.perf_counter() - began)
    return 2 * rows * inner * columns / min(taken)


def matrices(model: Any) -> list[tuple[int, int]]:
    """Returns the shapes of what a model multiplies by: no tables, nor embeddings of places."""
    variables = [v for v in model.all_variables if v.name not in model.tables]
    return [tuple(v.shape) for v in variables if len(v.shape) == 2 and "wpe" not in v.name]


def count_operations(experiment: Any, cohort: Any) -> float:
    """Counts those of products with the matrices: forward, to inputs, and to what moves."""
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

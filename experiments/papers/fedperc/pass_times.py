"""Times of one train pass and one test pass of FedPerC and its baselines (paper, Table 3).

A train pass is a step of one user: forward and backward through the model on 15 utterances, and
Adam's update of what moves. A test pass predicts 15 utterances, with their loss.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from fedpersonal.tasks.utterances.experiment import UtteranceOptions

from experiments.papers.fedperc.runs import UtteranceSource
from experiments.papers.summarized_runs import SummarizedRun
from fedpersonal.client.pooled import run_pooled_phase
from fedpersonal.client.pooled_batches import predict_examples
from fedpersonal.client.values import ClientValues
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.language_models.base_model import BaseModel
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.packing import as_examples, pack_clients
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.utterances.data import UtteranceData
from fedpersonal.tasks.utterances.history import add_history_of
from fedpersonal.tasks.utterances.methods import METHODS, build_algorithm, build_model, freeze

UTTERANCES = 15
_WARM_UPS = 3


@dataclasses.dataclass(frozen=True)
class PassOptions:
    """What is timed.

    Attributes:
        repeats: How often each pass is timed, >= 2.
        history_length: Tokens that a generator reads.
        seed: Seed of the split, and of initial values.
    """

    repeats: int = 30
    history_length: int = 96
    seed: int = 0


def time_passes(run: SummarizedRun, source: UtteranceSource, config: Mapping[str, Any]) -> None:
    """Times all methods; the work of one run with `PassOptions`."""
    base = source.load_base()
    data = source.load_data(base, split="known", seed=run.options.seed)
    times = measure_passes(data, base, run.options, frozen_folder=source.frozen_folder)
    RunFolder.open(run.path, config, ignore=()).write_summary(times)


def measure_passes(
    data: UtteranceData, base: BaseModel, options: PassOptions, *, frozen_folder: Any
) -> dict[str, dict[str, dict[str, float]]]:
    """Times the passes of all methods by turns, after a few that are not counted.

    The user is the one with the most utterances, of which the first 15 are taken.

    Args:
        data: The utterances, of which those for training are used.
        base: The base model.
        options: How often, and what of.
        frozen_folder: Where the base's weights are put.

    Returns:
        Method to `train` and `test`, each with the `median` and the standard deviation, `sd`, in
        milliseconds.
    """
    user = data.train.subset([int(data.train.counts.argmax())])
    batch = user.head(UTTERANCES)
    frozen = freeze(base, frozen_folder)
    passes: dict[tuple[str, str], Callable[[], Any]] = {}
    # However heads start, they take as long.
    methods = {name: method for name, method in METHODS.items() if not method.fresh_heads}
    for name, method in methods.items():
        model = build_model(
            name,
            base,
            frozen,
            num_contexts=data.num_contexts,
            history_length=options.history_length,
        )
        own = add_history_of(batch, user, length=options.history_length)
        if not method.reads_history:
            own = batch
        for what, work in _passes(name, model, own, options.seed).items():
            passes[name, what] = work
    milliseconds: dict[tuple[str, str], list[float]] = {key: [] for key in passes}
    for repeat in range(_WARM_UPS + options.repeats):
        for key, work in passes.items():
            start = time.perf_counter()
            tf.nest.map_structure(lambda tensor: tensor.numpy(), work())
            if repeat >= _WARM_UPS:
                milliseconds[key].append(1000 * (time.perf_counter() - start))
    return {
        name: {
            what: {
                "median": statistics.median(milliseconds[name, what]),
                "sd": statistics.stdev(milliseconds[name, what]),
            }
            for what in ("train", "test")
        }
        for name in methods
    }


def _passes(
    name: str, model: PartitionedModel, batch: ClientDataset, seed: int
) -> dict[str, Callable[[], Any]]:
    """Returns functions that do a train and a test pass of one user, compiled at the first call."""
    algorithm = build_algorithm(
        name, UtteranceOptions(algorithm=name, local_steps=1, client_batch_size=UTTERANCES)
    )
    features = {input_name: batch.features[input_name] for input_name in model.input_spec}
    if "user" in features:  # Each user has a table of one row.
        features["user"] = np.zeros_like(features["user"])
    packed = pack_clients(
        model,
        dataclasses.replace(batch, features=features),
        [0],
        clients_per_shard=1,
        batch_size=UTTERANCES,
        touched_data=algorithm.touched_data,
    )
    packed = tf.nest.map_structure(tf.constant, packed)
    draw = tf.function(
        lambda: model.initial_values(model.variables, tf.constant([seed, 0])), autograph=False
    )
    values = draw()
    local = [v.name for v in model.local_variables]
    own = {variable: values.pop(variable)[tf.newaxis] for variable in local}

    @tf.function(autograph=False)
    def train(shared, own, packed):
        moved, *_ = run_pooled_phase(
            model,
            algorithm.phases[-1],
            ClientValues(shared, own),
            as_examples(model, packed),
            with_metrics=False,
        )
        # Reading every number would be timed, too.
        return {key: tf.reshape(value, [-1])[0] for key, value in moved.own.items()}

    @tf.function(autograph=False)
    def test(shared, own, packed):
        return predict_examples(model, ClientValues(shared, own), as_examples(model, packed))[0]

    return {
        "train": lambda: train(values, own, packed),
        "test": lambda: test(values, own, packed),
    }

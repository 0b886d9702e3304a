"""Times of one train pass and one test pass of FedPerC and its baselines (paper, Table 3).

A train pass is a step of one user: forward and backward through the model on 15 utterances, and
Adam's update of what moves. A test pass predicts 15 utterances, with their loss.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from experiments.papers.runs import Run
from fedpersonal.tasks.utterances.methods import FEDERATED

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.trained import TrainedModel

UTTERANCES = 15
_WARM_UPS = 3


def time_passes(
    run: Run, experiment: Experiment, trained: TrainedModel, *, repeats: int
) -> dict[str, Any]:
    """Times the passes of all methods by turns, after a few that are not counted.

    The user is the one with the most utterances, of which the first 15 are taken.

    Returns:
        Method to `train` and `test`, each with the `median` and the standard deviation, `sd`, in
        milliseconds.
    """
    import tensorflow as tf

    del trained
    # However heads start, they take as long.
    methods = [method.name for method in FEDERATED if not (method.is_fresh or method.parts)]
    passes = {
        (name, what): work
        for name in methods
        for what, work in _passes(run, experiment, name).items()
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in passes}
    for _ in range(_WARM_UPS + repeats):
        for key, work in passes.items():
            start = time.perf_counter()
            tf.nest.map_structure(lambda tensor: tensor.numpy(), work())
            times[key].append(1000 * (time.perf_counter() - start))
    counted = {key: own[_WARM_UPS:] for key, own in times.items()}
    return {
        name: {
            what: {
                "median": statistics.median(counted[name, what]),
                "sd": statistics.stdev(counted[name, what]),
            }
            for what in ("train", "test")
        }
        for name in methods
    }


def _passes(run: Run, experiment: Experiment, name: str) -> dict[str, Callable[[], Any]]:
    """Returns functions that do a train and a test pass of one user, compiled at the first call."""
    import tensorflow as tf

    from fedpersonal.algorithm import GradientPhase
    from fedpersonal.client.pooled import run_pooled_phase
    from fedpersonal.client.pooled_batches import predict_examples
    from fedpersonal.client.values import ClientValues
    from fedpersonal.data.client_dataset import ClientDataset
    from fedpersonal.process.packing import as_examples, pack_clients

    task, data = run.task, experiment.data
    options = run.options.replace(algorithm=name, local_steps=1, client_batch_size=UTTERANCES)
    built = task.build(task.sizes(data), options)
    model, algorithm = built.model, built.algorithm
    user = data.train.subset([int(data.train.counts.argmax())]).head(UTTERANCES)
    clients, phase = task.training_clients(model, user, options), algorithm.phases[-1]
    assert isinstance(clients, ClientDataset) and isinstance(phase, GradientPhase)
    packed = pack_clients(
        model,
        clients,
        [0],
        clients_per_shard=1,
        batch_size=UTTERANCES,
        touched_data=algorithm.touched_data,
    )
    packed = tf.nest.map_structure(tf.constant, packed)
    draw = tf.function(
        lambda: model.initial_values(model.variables, tf.constant([options.seed, 0])),
        autograph=False,
    )
    values = draw()
    own = {v.name: values.pop(v.name)[tf.newaxis] for v in model.local_variables}

    @tf.function(autograph=False)
    def train(shared, own, packed):
        examples, start = as_examples(model, packed), ClientValues(shared, own)
        moved, *_ = run_pooled_phase(model, phase, start, examples, with_metrics=False)
        # Reading every number would be timed, too.
        return {key: tf.reshape(value, [-1])[0] for key, value in moved.own.items()}

    @tf.function(autograph=False)
    def test(shared, own, packed):
        return predict_examples(model, ClientValues(shared, own), as_examples(model, packed))[0]

    return {"train": lambda: train(values, own, packed), "test": lambda: test(values, own, packed)}

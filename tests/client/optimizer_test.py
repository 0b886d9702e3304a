"""FedProx' term in clients' steps, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm, GradientPhase
from fedpersonal.algorithms.fedperc import fedperc
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.process import build_process
from fedpersonal.process.shards import Execution, make_cohort

SERVER = tff.learning.optimizers.build_sgdm(1.0)
SGD_RATE, ADAM_RATE = 0.1, 0.1
OPTIMIZERS = {
    "sgd": tff.learning.optimizers.build_sgdm(SGD_RATE),
    "adam": tff.learning.optimizers.build_adam(ADAM_RATE),
}
MU, EPOCHS, BATCH_SIZE = 1.5, 3, 3
TABLE, HEAD, OWN = "table/embeddings", "head/kernel", "own/kernel"


def draw(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


START = {TABLE: draw(6, 2, seed=1), HEAD: draw(2, 1, seed=2), OWN: draw(2, 1, seed=3)}


def build_model():
    """A table and a dense layer, which are shared, and a dense layer of one's own."""
    constants = {name: tf.keras.initializers.Constant(value) for name, value in START.items()}
    word = tf.keras.Input([], dtype=tf.int32, name="word")
    table = tf.keras.layers.Embedding(6, 2, embeddings_initializer=constants[TABLE], name="table")
    row = table(word)
    dense = {
        name: tf.keras.layers.Dense(
            1, use_bias=False, kernel_initializer=constants[f"{name}/kernel"], name=name
        )(row)
        for name in ("head", "own")
    }
    return tf.keras.Model({"word": word}, dense["head"] + dense["own"])


@pytest.fixture(name="model", scope="module")
def _model():
    return PartitionedModel(build_model, local_layers=["own"], lookups={"table": "word"})


# Word 4 is of the first batch alone, word 5 of none; words repeat within a batch.
WORDS = [np.array([1, 1, 4, 0, 2, 2, 3]), np.array([2, 0, 0, 1])]
LABELS = [draw(len(words), seed=4 + i) for i, words in enumerate(WORDS)]


@pytest.fixture(name="dataset", scope="module")
def _dataset(make_dataset):
    return make_dataset(
        [
            ({"word": words.astype(np.int32)}, labels.astype(np.float32))
            for words, labels in zip(WORDS, LABELS)
        ]
    )


def gradients(values, words, labels):
    rows = values[TABLE][words]
    errors = 2 * ((rows @ (values[HEAD] + values[OWN]))[:, 0] - labels)[:, np.newaxis] / len(words)
    of_table = np.zeros_like(values[TABLE])
    np.add.at(of_table, words, errors @ (values[HEAD] + values[OWN]).T)
    return {TABLE: of_table, HEAD: rows.T @ errors, OWN: rows.T @ errors}


def train_in_numpy(name, client, *, held, mu=MU):
    """Returns what a client has after its steps, `held` being the variables that mu pulls on."""
    values = {key: value.copy() for key, value in START.items()}
    moments = {key: np.zeros([2, *value.shape]) for key, value in START.items()}
    step = 0
    for _ in range(EPOCHS):
        for first in range(0, len(WORDS[client]), BATCH_SIZE):
            batch = slice(first, first + BATCH_SIZE)
            found = gradients(values, WORDS[client][batch], LABELS[client][batch])
            step += 1
            for key, gradient in found.items():
                if key in held:
                    gradient = gradient + mu * (values[key] - START[key])
                if name == "sgd":
                    values[key] = values[key] - SGD_RATE * gradient
                    continue
                moments[key][0] += 0.1 * (gradient - moments[key][0])
                moments[key][1] += 0.001 * (gradient**2 - moments[key][1])
                rate = ADAM_RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
                values[key] = values[key] - rate * moments[key][0] / (
                    np.sqrt(moments[key][1]) + 1e-7
                )
    return values


def algorithm_of(name, mu):
    phase = GradientPhase("all", "all", OPTIMIZERS[name], epochs=EPOCHS, proximal=mu)
    return Algorithm("held", (phase,), "rebuilt", weighting="uniform")


def train(model, dataset, algorithm, execution, clients):
    """Returns the weights after a round of some clients."""
    options = {"clients_per_shard": len(clients), "packing": execution}
    execution = (
        Execution(batch_size=BATCH_SIZE)
        if execution == "per_client"
        else Execution(batch_size=BATCH_SIZE, **options)
    )
    process = build_process(model, algorithm, execution=execution, server_optimizer=SERVER)
    cohort = make_cohort(model, dataset, clients, execution=execution)
    state = process.next(process.initialize(), cohort.examples).state
    return dict(state.global_model_weights.trainable)


def close(actual, desired):
    np.testing.assert_allclose(actual, desired, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("execution", ["stacked", "pooled", "per_client"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shared_variables_are_held_as_in_numpy(model, dataset, name, execution):
    weights = train(model, dataset, algorithm_of(name, MU), execution, [0, 1])
    ends = [train_in_numpy(name, client, held={TABLE, HEAD}) for client in (0, 1)]
    for key in (TABLE, HEAD):
        close(weights[key], np.mean([end[key] for end in ends], axis=0))
    np.testing.assert_array_equal(weights[TABLE][5], START[TABLE][5].astype(np.float32))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_it_holds_and_what_not(model, dataset, name):
    """NumPy's steps differ where a client's own layer is held, a table is not, or nothing is."""
    weights = train(model, dataset, algorithm_of(name, MU), "stacked", [0])
    close(weights[TABLE], train_in_numpy(name, 0, held={TABLE, HEAD})[TABLE])
    for held in ({TABLE, HEAD, OWN}, {HEAD}, {TABLE}, set()):
        other = train_in_numpy(name, 0, held=held)
        assert max(np.abs(weights[key] - other[key]).max() for key in (TABLE, HEAD)) > 1e-3
    close(
        train(model, dataset, algorithm_of(name, 0.0), "stacked", [0])[TABLE],
        train_in_numpy(name, 0, held=set())[TABLE],
    )


def test_a_step_from_the_start_is_not_held(model, dataset):
    """There is nothing to hold on to before anything has moved."""

    def one_step(mu):
        phase = GradientPhase("all", "all", OPTIMIZERS["sgd"], max_steps=1, proximal=mu)
        return train(model, dataset, Algorithm("one", (phase,), "rebuilt"), "stacked", [0, 1])

    one, other = one_step(100.0), one_step(0.0)
    for key, value in one.items():
        close(value, other[key])


def test_weights_that_are_refused():
    for mu in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="GradientPhase: proximal must be at least 0, not"):
            fedperc(client_optimizer=OPTIMIZERS["sgd"], proximal=mu)

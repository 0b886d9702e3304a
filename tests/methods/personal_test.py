"""Methods with personal copies, or a look ahead, against NumPy: loops over clients and batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.federated.process import build_process
from fedpersonal.methods.apfl import apfl
from fedpersonal.methods.ditto import ditto
from fedpersonal.methods.mr_mtl import mr_mtl
from fedpersonal.methods.per_fed_avg import per_fed_avg
from fedpersonal.methods.pfedme import pfedme
from fedpersonal.model.names import COPY, MIXING
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.runs.kept import Rounds, read_kept
from fedpersonal.runs.store import LocalStateStore

BATCH_SIZE, EPOCHS, NUM_WORDS, DIM = 3, 2, 6, 2
COUNTS = (7, 3, 10, 5)
# Partial participation: clients come back to copies that have grown old.
COHORTS = ([0, 1, 2], [2, 3], [0, 1, 3])
TABLE, HEAD = "table/embeddings", "head/kernel"
RATE, OWN_RATE, ALPHA_RATE, PULL, MIX, ENVELOPE = 0.2, 0.15, 3.0, 0.7, 0.4, 2.0
EXECUTION = Execution(batch_size=BATCH_SIZE, clients_per_shard=2)


def sgd(rate):
    return tff.learning.optimizers.build_sgdm(rate)


WORK = {"client_optimizer": sgd(RATE), "local_epochs": EPOCHS}
ALGORITHMS = {
    "ditto": ditto(**WORK, local_optimizer=sgd(OWN_RATE), pull=PULL, local_only_epochs=EPOCHS),
    "mr_mtl": mr_mtl(**WORK, pull=PULL),
    "apfl": apfl(
        **WORK, local_optimizer=sgd(OWN_RATE), mixing_optimizer=sgd(ALPHA_RATE), mixing=MIX
    ),
    "per_fed_avg": per_fed_avg(**WORK, adaptation_optimizer=sgd(OWN_RATE)),
    "pfedme": pfedme(**WORK, inner_optimizer=sgd(OWN_RATE), inner_steps=3, envelope=ENVELOPE),
}


pytestmark = pytest.mark.usefixtures("not_compiled")


def draw(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


START = {TABLE: draw(NUM_WORDS, DIM, seed=1), HEAD: draw(DIM, 1, seed=2)}


def build_model():
    constants = {name: tf.keras.initializers.Constant(value) for name, value in START.items()}
    word = tf.keras.Input([], dtype=tf.int32, name="word")
    table = tf.keras.layers.Embedding(
        NUM_WORDS, DIM, embeddings_initializer=constants[TABLE], name="table"
    )
    head = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer=constants[HEAD], name="head")
    return tf.keras.Model({"word": word}, head(table(word)))


def clients():
    """The words and the labels of each client: they repeat, and each lacks some words."""
    random = np.random.default_rng(5)
    for count in COUNTS:
        words = random.integers(0, NUM_WORDS - 1, count).astype(np.int32)
        yield words, random.normal(size=count).astype(np.float32)


CLIENTS = list(clients())


@pytest.fixture(name="dataset", scope="module")
def _dataset(make_dataset):
    return make_dataset([({"word": words}, labels) for words, labels in CLIENTS])


class Params(dict):
    """Variables by name, to compute with."""

    def __add__(self, other):
        return Params({k: v + other[k] for k, v in self.items()})

    def __sub__(self, other):
        return Params({k: v - other[k] for k, v in self.items()})

    def __rmul__(self, factor):
        return Params({k: factor * v for k, v in self.items()})

    def dot(self, other):
        return sum((v * other[k]).sum() for k, v in self.items())


def slope(values, batch):
    """The gradient of the mean squared error of a batch."""
    words, labels = batch
    rows = values[TABLE][words]
    errors = 2 * ((rows @ values[HEAD])[:, 0] - labels)[:, np.newaxis] / len(words)
    table = np.zeros_like(values[TABLE])
    np.add.at(table, words, errors @ values[HEAD].T)
    return Params({TABLE: table, HEAD: rows.T @ errors})


def batches_of(client):
    words, labels = CLIENTS[client]
    starts = range(0, len(words), BATCH_SIZE)
    return [(words[s : s + BATCH_SIZE], labels[s : s + BATCH_SIZE]) for s in starts]


def ditto_client(sent, kept, batches):
    own, shared = kept or sent, sent
    for batch in batches * EPOCHS:
        own = own - OWN_RATE * (slope(own, batch) + PULL * (own - sent))
        shared = shared - RATE * slope(shared, batch)
    return shared, own, batches


def mr_mtl_client(sent, kept, batches):
    own = kept or sent
    for batch in batches * EPOCHS:
        own = own - RATE * (slope(own, batch) + PULL * (own - sent))
    return own, own, batches


def apfl_client(sent, kept, batches):
    shared = sent
    own, alpha = kept or (sent, MIX)
    for batch in batches * EPOCHS:
        mixed = slope(alpha * own + (1 - alpha) * shared, batch)
        along = (own - shared).dot(mixed)
        own, shared = own - OWN_RATE * alpha * mixed, shared - RATE * slope(shared, batch)
        alpha = np.clip(alpha - ALPHA_RATE * along, 0, 1)
    return shared, (own, alpha), batches


def per_fed_avg_client(sent, kept, batches):
    shared, support, query = sent, batches[0::2], batches[1::2]
    for step, batch in enumerate(query * EPOCHS):
        adapted = shared - OWN_RATE * slope(shared, support[step % len(support)])
        shared = shared - RATE * slope(adapted, batch)
    return shared, None, query


def pfedme_client(sent, kept, batches):
    shared = sent
    for batch in batches * EPOCHS:
        theta = shared
        for _ in range(3):
            theta = theta - OWN_RATE * (slope(theta, batch) + ENVELOPE * (theta - shared))
        shared = shared - RATE * ENVELOPE * (shared - theta)
    return shared, None, batches


PLAIN = {
    "ditto": ditto_client,
    "mr_mtl": mr_mtl_client,
    "apfl": apfl_client,
    "per_fed_avg": per_fed_avg_client,
    "pfedme": pfedme_client,
}


def in_numpy(name):
    """Returns the shared model after each round, and what each client has kept at the end."""
    shared, kept, models = Params(START), {}, []
    for cohort in COHORTS:
        total, change = 0, Params({k: np.zeros_like(v) for k, v in START.items()})
        for client in cohort:
            sent, kept[client], used = PLAIN[name](shared, kept.get(client), batches_of(client))
            count = sum(len(labels) for _, labels in used)
            change, total = change + count * (sent - shared), total + count
        shared = shared + (1 / total) * change
        models.append(shared)
    return models, kept


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_are_those_of_numpy(name, dataset, tmp_path):
    """Those of the papers; whatever packs the clients is a case of the table of rounds."""
    algorithm = ALGORITHMS[name]
    model = algorithm.prepare(PartitionedModel(build_model, lookups={"table": "word"}))
    process = build_process(model, algorithm, execution=EXECUTION, server_optimizer=sgd(1.0))
    store = None
    if algorithm.keeps:
        store = LocalStateStore.open(tmp_path / "store", model.local_variables)
    rounds = Rounds(process, store)
    state = rounds.initialize()
    expected, expected_kept = in_numpy(name)
    for indices, after in zip(COHORTS, expected):
        cohort = make_cohort(
            model, dataset, indices, execution=EXECUTION, touched_data=algorithm.touched_data
        )
        state = rounds.next(state, cohort).state
        weights = state.global_model_weights.trainable
        assert list(weights) == [TABLE, HEAD]
        for key, value in after.items():
            np.testing.assert_allclose(weights[key], value, rtol=1e-5, atol=1e-5, err_msg=key)
    if store is None:
        return
    known, values = read_kept(store, state, dataset.client_ids.tolist())
    store.close()
    assert known.all()
    alphas = []
    for client, own in expected_kept.items():
        if name == "apfl":
            own, alpha = own
            np.testing.assert_allclose(values[MIXING][client], alpha, atol=1e-5)
            alphas.append(alpha)
        for key, value in own.items():
            found = values[f"{COPY}/{key}"][client]
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5, err_msg=key)
            assert np.abs(value - expected[-1][key]).max() > 1e-2
    assert name != "apfl" or np.ptp(alphas) > 0.1

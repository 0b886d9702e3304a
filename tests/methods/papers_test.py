"""What a client does in a round is what the papers say, written out in NumPy.

It is compared with the plain round of the audit, with which the table of rounds compares all else.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.audit.plain_model import Client
from fedpersonal.audit.reference import Reference
from fedpersonal.data.clients import ClientDataset
from fedpersonal.methods.algorithm import Algorithm, PersonalCopies
from fedpersonal.methods.apfl import apfl
from fedpersonal.methods.ditto import ditto
from fedpersonal.methods.fed_dyn import fed_dyn
from fedpersonal.methods.fed_em import fed_em
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.methods.furl import furl
from fedpersonal.methods.ifca import ifca
from fedpersonal.methods.mr_mtl import mr_mtl
from fedpersonal.methods.per_fed_avg import per_fed_avg
from fedpersonal.methods.pfedme import pfedme
from fedpersonal.methods.pfedrec import pfedrec
from fedpersonal.methods.phases import BlendPhase, GradientPhase
from fedpersonal.methods.reptile import reptile
from fedpersonal.methods.scaffold import scaffold
from fedpersonal.model.names import BLEND, CLUSTER, CLUSTER_SHARES, COPY, MIXING, SERVER_STATE
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.tff.optimizers import build_sgdm
from fedpersonal.training.trainer import Trainer

BATCH_SIZE, NUM_WORDS, DIM = 3, 6, 2
TABLE, HEAD = "table/embeddings", "head/kernel"
RATE, OWN_RATE, ALPHA_RATE, PULL, MIX, ENVELOPE = 0.2, 0.15, 3.0, 0.7, 0.4, 2.0
RANDOM = np.random.default_rng(1)
START = {TABLE: RANDOM.normal(size=(NUM_WORDS, DIM)), HEAD: RANDOM.normal(size=(DIM, 1))}
WORDS = RANDOM.integers(0, NUM_WORDS - 1, 10).astype(np.int32)  # They repeat, and one is missing.
LABELS = RANDOM.normal(size=10).astype(np.float32)
BATCHES = [
    (WORDS[s : s + BATCH_SIZE], LABELS[s : s + BATCH_SIZE]) for s in range(0, 10, BATCH_SIZE)
]
SUPPORT, QUERY = BATCHES[0::2], BATCHES[1::2]


def build_model():
    constants = {name: tf.keras.initializers.Constant(value) for name, value in START.items()}
    word = tf.keras.Input([], dtype=tf.int32, name="word")
    table = tf.keras.layers.Embedding(
        NUM_WORDS, DIM, embeddings_initializer=constants[TABLE], name="table"
    )
    head = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer=constants[HEAD], name="head")
    return tf.keras.Model({"word": word}, head(table(word)))


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


def slope(values, batch, *names):
    """The gradient of the mean squared error of a batch; of some names, 0 for the others."""
    words, labels = batch
    rows = values[TABLE][words]
    errors = 2 * ((rows @ values[HEAD])[:, 0] - labels)[:, np.newaxis] / len(words)
    table = np.zeros_like(values[TABLE])
    np.add.at(table, words, errors @ values[HEAD].T)
    slopes = {TABLE: table, HEAD: rows.T @ errors}
    return Params({k: v if k in names or not names else 0 * v for k, v in slopes.items()})


# Each returns the client's model, by which the server's moves, and what the client keeps.


def of_ditto(sent, kept):
    own, shared = Params(kept or sent), sent
    for batch in BATCHES * 2:
        own = own - OWN_RATE * (slope(own, batch) + PULL * (own - sent))
        shared = shared - RATE * slope(shared, batch)
    return shared, own


def of_mr_mtl(sent, kept):
    own = Params(kept or sent)
    for batch in BATCHES * 2:
        own = own - RATE * (slope(own, batch) + PULL * (own - sent))
    return own, own


def of_apfl(sent, kept):
    shared, own = sent, Params({k: v for k, v in (kept or sent).items() if k != MIXING})
    alpha = kept[MIXING] if kept else MIX
    for batch in BATCHES * 2:
        mixed = slope(alpha * own + (1 - alpha) * shared, batch)
        along = (own - shared).dot(mixed)
        own, shared = own - OWN_RATE * alpha * mixed, shared - RATE * slope(shared, batch)
        alpha = np.clip(alpha - ALPHA_RATE * along, 0, 1)
    return shared, {**own, MIXING: alpha}


def of_per_fed_avg(sent, kept):
    shared = sent
    for step, batch in enumerate(QUERY * 2):
        adapted = shared - OWN_RATE * slope(shared, SUPPORT[step % len(SUPPORT)])
        shared = shared - RATE * slope(adapted, batch)
    return shared, {}


def of_pfedme(sent, kept):
    shared = sent
    for batch in BATCHES * 2:
        theta = shared
        for _ in range(3):
            theta = theta - OWN_RATE * (slope(theta, batch) + ENVELOPE * (theta - shared))
        shared = shared - RATE * ENVELOPE * (shared - theta)
    return shared, {}


def of_reptile(sent, kept):
    shared = sent
    for batch in BATCHES * 2:
        shared = shared - RATE * slope(shared, batch)
    return shared, {}


def of_scaffold(sent, kept):
    start, server = (Params({k: sent[p + k] for k in START}) for p in ("", f"{SERVER_STATE}/"))
    own, model, rate = Params(kept or 0.0 * start), start, RATE
    for batch in BATCHES * 2:
        model = model - rate * (slope(model, batch) - own + server)
    new = own - server + (1 / (len(BATCHES) * 2 * rate)) * (start - model)
    moved = server + (new - own)
    return {**model, **{f"{SERVER_STATE}/{k}": v for k, v in moved.items()}}, new


def of_fed_dyn(sent, kept):
    own, model = Params(kept or 0.0 * sent), sent
    for batch in BATCHES * 2:
        model = model - RATE * (slope(model, batch) - own + PULL * (model - sent))
    return model, own - PULL * (model - sent)


def of_fed_rod(sent, kept):
    shared, own = sent, (kept or {HEAD: 0.0 * sent[HEAD]})[HEAD]
    for batch in BATCHES * 2:
        shared = shared - RATE * slope(shared, batch)
    for batch in BATCHES * 2:
        both = Params({**shared, HEAD: shared[HEAD] + own})
        own = own - OWN_RATE * slope(both, batch)[HEAD]
    return shared, {HEAD: own}


def of_fed_ala(sent, kept):
    own, share = (kept[HEAD], kept["blend"]) if kept else (sent[HEAD], np.ones((DIM, 1)))
    way = sent[HEAD] - own
    for batch in BATCHES * 2:
        both = Params({**sent, HEAD: own + share * way})
        share = np.clip(share - ALPHA_RATE * slope(both, batch)[HEAD] * way, 0, 1)
    model = Params({**sent, HEAD: own + share * way})
    for batch in BATCHES * 2:
        model = model - RATE * slope(model, batch)
    return model, {HEAD: model[HEAD], "blend": share}


def in_turn(sent, kept, phases):
    """Phases of batches, a rate and names, on what was sent and kept."""
    values = Params({**sent, **(kept or {HEAD: START[HEAD]})})
    for batches, rate, names in phases:
        for batch in batches:
            values = values - rate * slope(values, batch, *names)
    return values, {HEAD: values[HEAD]}


def of_pfedrec(sent, kept):
    return in_turn(sent, kept, [(BATCHES * 2, OWN_RATE, [HEAD]), (BATCHES * 2, RATE, [TABLE])])


def of_furl(sent, kept):
    return in_turn(sent, kept, [(BATCHES * 2, RATE, [HEAD, TABLE])])


def of_fed_recon(sent, kept):
    values, _ = in_turn(sent, None, [(SUPPORT * 3, OWN_RATE, [HEAD]), (QUERY * 2, RATE, [TABLE])])
    return values, {}


SGD, OWN = (build_sgdm(rate) for rate in (RATE, OWN_RATE))
ALPHA = build_sgdm(ALPHA_RATE)
WORK = {"client_optimizer": SGD, "local_epochs": 2}
FED_ROD = Algorithm(
    "fed_rod",
    (GradientPhase("global", "all", SGD, 2), GradientPhase("personal", "all", OWN, 2)),
    "kept",
    personal=PersonalCopies(("head",), role="offset"),
)
FED_ALA = Algorithm(
    "fed_ala",
    (BlendPhase("all", ALPHA_RATE, 2), GradientPhase("all", "all", SGD, 2)),
    "kept",
    personal=PersonalCopies(("head",), are_sent=True, blends=True),
)
METHODS = {
    "ditto": (ditto(**WORK, local_optimizer=OWN, pull=PULL, local_only_epochs=2), of_ditto),
    "mr_mtl": (mr_mtl(**WORK, pull=PULL), of_mr_mtl),
    "apfl": (apfl(**WORK, local_optimizer=OWN, mixing_optimizer=ALPHA, mixing=MIX), of_apfl),
    "per_fed_avg": (per_fed_avg(**WORK, adaptation_optimizer=OWN), of_per_fed_avg),
    "pfedme": (
        pfedme(**WORK, inner_optimizer=OWN, inner_steps=3, envelope=ENVELOPE), of_pfedme
    ),
    "reptile": (reptile(**WORK), of_reptile),
    "pfedrec": (pfedrec(**WORK, local_optimizer=OWN, local_only_epochs=2), of_pfedrec),
    "furl": (furl(**WORK), of_furl),
    "scaffold": (scaffold(**WORK), of_scaffold),
    "fed_dyn": (fed_dyn(**WORK, feddyn_alpha=PULL), of_fed_dyn),
    "fed_rod": (FED_ROD, of_fed_rod),
    "fed_ala": (FED_ALA, of_fed_ala),
    "fed_recon": (
        fed_recon(**WORK, reconstruction_optimizer=OWN, reconstruction_epochs=3), of_fed_recon
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_round_is_that_of_the_paper(name):
    """The second round starts from what the first has kept, and from what others have moved."""
    algorithm, of_paper = METHODS[name]
    has_head = name in ("pfedrec", "furl", "fed_recon")
    model = PartitionedModel(build_model, local_layers=["head"] if has_head else [])
    model = algorithm.prepare(model)
    reference = Reference(model, algorithm, batch_size=BATCH_SIZE, seed=0)
    client = Client({"word": WORDS}, LABELS)
    zeros = {v.name: np.zeros(v.shape) for v in model.global_variables}
    sent, kept = {name: START.get(name, zero) for name, zero in zeros.items()}, None
    local = reference.fresh_local_values(client, 0)
    for number in range(2):
        found = reference.run(sent, local, client, number)
        ended, kept = of_paper(Params(sent), kept)
        changes = {**found.states, **{k: -update for k, update in found.updates.items()}}
        for key, value in sent.items():
            np.testing.assert_allclose(value + changes[key], ended[key], 1e-4, 1e-5)
            assert np.abs(changes[key]).max() > 1e-2
        for key, value in kept.items():
            key = f"{BLEND}/{HEAD}" if key == "blend" else key
            own = found.kept[f"{COPY}/{key}" if f"{COPY}/{key}" in found.kept else key]
            np.testing.assert_allclose(own, value, 1e-4, 1e-5, err_msg=key)
        sent = {k: np.float32(0.9 * ended[k] + 0.02) for k in sent}
        local = found.kept if algorithm.keeps else reference.fresh_local_values(client, 1)


def ifca_in_numpy(models, clients, rounds, mean_over):
    """Algorithm 1 on a linear model; `models` is (DIM, K), clients are inputs and labels."""
    sizes = np.array([len(labels) for _, labels in clients])
    for _ in range(rounds):
        ended, chosen = [], []
        for inputs, labels in clients:
            errors = inputs @ models - labels[:, np.newaxis]
            chosen.append(np.argmin(np.mean(errors**2, 0)))
            own = models[:, chosen[-1]]
            for _ in range(2):
                own = own - RATE * 2 * inputs.T @ (inputs @ own - labels) / len(labels)
            ended.append(own)
        weights = np.eye(models.shape[1])[chosen] * sizes[:, np.newaxis]
        total = weights.sum(0) if mean_over == "cluster" else sizes.sum()
        changes = np.array(ended)[:, :, np.newaxis] - models
        models = models + np.einsum("ck,cdk->dk", weights, changes) / np.maximum(total, 1)
    return models, chosen, weights.sum(0) / sizes.sum()


@pytest.mark.exhaustive(but=("cluster",))
@pytest.mark.parametrize("mean_over", ["cluster", "cohort"])
def test_ifca_is_the_papers_and_finds_groups_that_contradict_each_other(mean_over):
    random, truth, counts = np.random.default_rng(0), np.array([1.0, -2.0]), [7, 9, 5, 8, 6, 4]
    signs = np.repeat([1, -1, 1, -1, 1, -1], counts)
    inputs = np.float32(random.normal(size=(sum(counts), DIM)))
    ends = np.append(0, np.cumsum(counts))
    labels = np.float32(signs * (inputs @ truth))
    dataset = ClientDataset([f"c{i}" for i in range(6)], ends, {"x": inputs}, labels)
    parts = [(inputs[a:b], labels[a:b]) for a, b in zip(ends, ends[1:])]
    x = tf.keras.Input([DIM], name="x")
    model = PartitionedModel(
        lambda: tf.keras.Model(x, tf.keras.layers.Dense(1, use_bias=False, name="d")(x))
    )
    algorithm = ifca(**WORK, num_clusters=2, mean_over=mean_over)
    trainer = Trainer(model, algorithm, dataset, clients_per_round=6, batch_size=16)
    start = trainer.untrained().weights["d/kernel"][:, 0]
    for rounds in (3, 40):
        trained = trainer.fit(rounds=rounds, callbacks=[])
        models, chosen, shares = ifca_in_numpy(start, parts, rounds, mean_over)
        found = trained.weights["d/kernel"][:, 0]
        np.testing.assert_allclose(found, models, 1e-5, 1e-5)
        for i, choice in enumerate(chosen):
            values = trained.values(support=dataset.subset([i]))
            np.testing.assert_array_equal(values[CLUSTER], np.eye(2)[choice])
        if mean_over == "cluster":
            np.testing.assert_allclose(trained.weights[CLUSTER_SHARES], shares, 1e-5)
    order = np.argsort(found[0])
    np.testing.assert_allclose(found[:, order], np.outer(truth, [-1, 1]), 1e-4, 1e-4)
    assert chosen[0::2] == 3 * [order[1]] and chosen[1::2] == 3 * [order[0]]


def fed_em_in_numpy(models, clients, rounds):
    """Algorithm 1 on logistic models, a local step a round; `models` is (DIM, M).

    The expectation is taken again where the proportions have moved, for the step.
    """
    sizes = np.array([len(labels) for _, labels in clients])
    proportions = np.full([len(clients), models.shape[1]], 1 / models.shape[1])
    for _ in range(rounds):
        total = np.zeros(models.shape)
        for own, (inputs, labels) in enumerate(clients):
            signs = 2 * labels[:, np.newaxis] - 1
            of_label = 1 / (1 + np.exp(-signs * (inputs @ models)))
            for _ in range(2):
                made_by = proportions[own] * of_label
                made_by /= made_by.sum(1, keepdims=True)
                proportions[own] = made_by.mean(0)
            made_by = proportions[own] * of_label
            made_by /= made_by.sum(1, keepdims=True)
            total += 4 * RATE * inputs.T @ (made_by * (1 - of_label) * signs)
        models = models + total / sizes.sum()
    return models, proportions


def test_fed_em_is_the_papers_and_finds_what_clients_are_mixed_of():
    random, truth, counts = np.random.default_rng(2), np.array([4.0, -8.0]), [60, 90, 50, 80]
    shares, ends = np.array([0.1, 0.9, 0.3, 0.8]), np.append(0, np.cumsum(counts))
    inputs = np.float32(random.normal(size=(sum(counts), DIM)))
    sides = np.where(random.uniform(size=sum(counts)) < np.repeat(shares, counts), 1, -1)
    labels = np.float32(sides * (inputs @ truth) > 0)
    dataset = ClientDataset([f"c{i}" for i in range(4)], ends, {"x": inputs}, labels)
    parts = [(inputs[a:b], labels[a:b]) for a, b in zip(ends, ends[1:])]
    x = tf.keras.Input([DIM], name="x")
    model = PartitionedModel(
        lambda: tf.keras.Model(x, tf.keras.layers.Dense(1, use_bias=False, name="d")(x)),
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
    )
    algorithm = fed_em(client_optimizer=build_sgdm(4 * RATE), em_steps=2)
    trainer = Trainer(model, algorithm, dataset, clients_per_round=4, batch_size=100)
    start = trainer.untrained().weights["d/kernel"][:, 0]
    for rounds in (3, 150):
        trained = trainer.fit(rounds=rounds, callbacks=[])
        models, proportions = fed_em_in_numpy(start, parts, rounds)
        np.testing.assert_allclose(trained.weights["d/kernel"][:, 0], models, 1e-5, 1e-5)
        for i, expected in enumerate(proportions):
            kept = trained.values(f"c{i}")[CLUSTER]
            np.testing.assert_allclose(kept, expected, 1e-5, 1e-5)
    first = proportions[:, int(models[0, 1] > 0)]
    np.testing.assert_allclose(first, shares, atol=0.1)

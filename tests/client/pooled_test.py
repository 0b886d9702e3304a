"""Pooled evaluation against stacked: chunks, the order of clients, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.client import pooled_batches
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.splits import split_support_query
from fedpersonal.evaluation.evaluate import build_evaluation
from fedpersonal.methods.algorithm import GradientPhase
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.next_word import next_word_lstm
from fedpersonal.models.tokens import count_tokens, sum_cross_entropy, token_accuracy

SGD = tff.learning.optimizers.build_sgdm(0.3)
ADAM = tff.learning.optimizers.build_adam(0.05)
MOMENTUM = tff.learning.optimizers.build_sgdm(0.2, momentum=0.8)

NUM_KNOWN, BUCKETS, TIME = 9, 3, 5
BATCH_SIZE = 3
# Four batches, one (and so no query set), two, three.
COUNTS = (11, 2, 6, 7)


def make_sentences():
    random = np.random.default_rng(3)
    tokens = np.zeros([sum(COUNTS), TIME + 1], np.int32)
    for row in tokens:
        length = random.integers(2, TIME + 2)
        row[:length] = random.integers(1, NUM_KNOWN + BUCKETS, length)
    token, known = tokens[:, :-1], tokens[:, :-1] < NUM_KNOWN
    return ClientDataset(
        client_ids=np.array(list("abcd"), object),
        offsets=np.append(0, np.cumsum(COUNTS)),
        features={
            "token": token,
            "known_token": np.where(known, token, 0),
            "oov_token": np.where(known, 0, token - NUM_KNOWN),
        },
        labels=tokens[:, 1:],
    )


SENTENCES = make_sentences()


def make_model(*, local):
    return PartitionedModel(
        next_word_lstm(
            num_known=NUM_KNOWN,
            num_oov_buckets=BUCKETS,
            embedding_dim=3,
            lstm_units=4,
            projection_dim=3,
        ),
        local_layers=["oov_embedding"] if local else [],
        loss=sum_cross_entropy,
        metrics=[token_accuracy("accuracy", num_known=NUM_KNOWN)],
        lookups={"known_embedding": "known_token", "oov_embedding": "oov_token"},
        label_spec=tf.TensorSpec([None, None], tf.int32),
        example_weight=count_tokens,
        unit="tokens",
        sequence_length=lambda features, labels: count_tokens(labels),
    )


@pytest.fixture(name="models", scope="module")
def _models():
    return {local: make_model(local=local) for local in (False, True)}


def weights_of(model):
    random = np.random.default_rng(6)
    return {v.name: random.normal(size=v.shape).astype(np.float32) for v in model.global_variables}


def phase(variables, optimizer=SGD, **options):
    return GradientPhase(variables, "all", optimizer, **{"epochs": 2, "max_steps": 3, **options})


# Whether the OOV embedding is local, the phases, and whether clients are pooled in all of them.
PERSONALIZATIONS = {
    "nothing": (False, ()),
    "nothing but a start": (True, ()),
    "reconstruction": (True, (phase("local", ADAM),)),
    "oov_finetuning": (False, (phase(("oov_embedding",), MOMENTUM),)),
    "full_finetuning": (False, (phase("all", ADAM),)),
    "reconstruction and fine-tuning": (True, (phase("local"), phase("global", MOMENTUM))),
}


def evaluate(model, phases, dataset, *, clients=3, **options):
    support, query = split_support_query(dataset, batch_size=BATCH_SIZE, split="aggregated")
    evaluation = build_evaluation(
        model, phases, support, query, batch_size=BATCH_SIZE, clients=clients, **options
    )
    return evaluation(weights_of(model))


def assert_same_results(one, other):
    np.testing.assert_array_equal(one.client_ids, other.client_ids)
    np.testing.assert_array_equal(one.num_examples, other.num_examples)
    for stage in ("before", "after"):
        sums, others = getattr(one, stage), getattr(other, stage)
        assert sums.keys() == others.keys() == {"loss", "accuracy"}
        for name, pairs in sums.items():
            np.testing.assert_allclose(pairs, others[name], rtol=1e-4, atol=1e-4)


def cut_chunks(monkeypatch, chunk):
    monkeypatch.setattr(pooled_batches, "CHUNK", chunk)


@pytest.mark.parametrize("name", PERSONALIZATIONS)
def test_evaluation_is_the_stacked_one(models, monkeypatch, name):
    """In chunks of 4 sentences, of which most steps and predictions take several."""
    local, phases = PERSONALIZATIONS[name]
    model = models[local]
    stacked = evaluate(model, phases, SENTENCES, packing="stacked")
    np.testing.assert_array_equal(stacked.num_examples, [5, 0, 3, 1])
    cut_chunks(monkeypatch, 4)
    pooled = evaluate(model, phases, SENTENCES, packing="pooled")
    assert_same_results(pooled, stacked)
    tokens = [(SENTENCES.client(i)[1][-n:] > 0).sum() for i, n in ((0, 5), (2, 3), (3, 1))]
    np.testing.assert_array_equal(pooled.after["loss"][[0, 2, 3], 1], tokens)
    assert pooled.predictions is None
    difference = np.abs(pooled.after["loss"] - pooled.before["loss"])[[0, 2, 3], 0]
    assert (difference > 1e-3).all() if phases else not difference.any()


def test_order_padding_clients_and_what_else_is_asked_change_nothing(models):
    local, phases = PERSONALIZATIONS["reconstruction and fine-tuning"]
    expected = evaluate(models[local], phases, SENTENCES, packing="pooled", clients=4)
    order = [2, 0, 3, 1]
    # Members of three: one is full, the other has two clients that do not exist.
    results = evaluate(
        models[local], phases, SENTENCES.subset(order), packing="pooled", with_before=False
    )
    assert results.client_ids.tolist() == list("cadb")
    assert results.before is None and results.overall_before() == {}
    for name, pairs in expected.after.items():
        np.testing.assert_allclose(results.after[name], pairs[order], rtol=1e-4, atol=1e-4)


class NormOfEach(tf.keras.layers.Layer):
    """Adds a loss of each example."""

    def call(self, inputs):
        self.add_loss(tf.reduce_sum(tf.square(inputs), axis=1))
        return inputs


def penalised(*, each):
    """A local table, and an L2 penalty: one of the batch, or one of each example."""

    def build_model():
        word = tf.keras.Input([], dtype=tf.int32, name="word")
        own = tf.keras.layers.Embedding(4, 2, name="own")(word)
        own = NormOfEach()(own) if each else own
        penalty = None if each else tf.keras.regularizers.L2(0.1)
        head = tf.keras.layers.Dense(1, kernel_regularizer=penalty, name="head")(own)
        return tf.keras.Model({"word": word}, head)

    return PartitionedModel(build_model, local_layers=["own"], lookups={"own": "word"})


def words(make_dataset):
    random = np.random.default_rng(2)
    return make_dataset(
        [({"word": random.integers(0, 4, n)}, random.normal(size=n)) for n in (7, 5)]
    )


def test_a_loss_of_a_batch_is_refused_where_clients_share_it(make_dataset):
    support, query = split_support_query(words(make_dataset), batch_size=2)
    model, options = penalised(each=False), {"batch_size": 2, "packing": "pooled", "clients": 2}
    evaluate = build_evaluation(model, [phase("local")], support, query, **options)
    with pytest.raises(ValueError, match="one value an example from add_loss.*stacked execution"):
        evaluate(weights_of(model))


@pytest.mark.parametrize(("each", "clients"), [(True, 2), (False, 1)])
def test_losses_that_a_model_adds(make_dataset, each, clients):
    """One an example is each client's own, and so is one of a batch that is a client's alone."""
    model, (support, query) = (
        penalised(each=each),
        split_support_query(words(make_dataset), batch_size=2),
    )
    stacked, pooled = (
        build_evaluation(
            model,
            [phase("local"), phase("all")],
            support,
            query,
            batch_size=2,
            clients=clients,
            packing=packing,
        )(weights_of(model))
        for packing in ("stacked", "pooled")
    )
    for name, pairs in stacked.after.items():
        np.testing.assert_allclose(pooled.after[name], pairs, rtol=1e-4, atol=1e-5)
    assert (np.abs(stacked.after["loss"] - stacked.before["loss"])[:, 0] > 1e-2).all()

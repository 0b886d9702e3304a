"""Next word prediction: pooled, stacked, per-client execution and TFF's own FedRecon are equal."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from fedpersonal.process.datasets import client_datasets

from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.next_word_lstm import next_word_lstm
from fedpersonal.models.token_prediction import count_tokens, sum_cross_entropy, token_accuracy
from fedpersonal.process.process import build_process
from fedpersonal.process.shards import Execution, make_cohort

SGD = tff.learning.optimizers.build_sgdm(0.3)
MOMENTUM = tff.learning.optimizers.build_sgdm(0.2, momentum=0.8)
ADAM = tff.learning.optimizers.build_adam(0.05)
SERVER = tff.learning.optimizers.build_sgdm(0.9)

NUM_KNOWN, BUCKETS, TIME = 11, 4, 6
BATCH_SIZE = 3
# Three batches and a part of one, one batch, one sentence, many batches, two batches.
COUNTS = (11, 3, 1, 16, 6)
COHORTS = ([0, 1, 2, 3], [4, 3, 0], [1, 4, 2, 0, 3])
LOOKUPS = {"known_embedding": "known_token", "oov_embedding": "oov_token"}


def close(actual, desired):
    np.testing.assert_allclose(actual, desired, rtol=1e-4, atol=1e-4)


def make_sentences(*, padding=0):
    """Draws sentences of all lengths; `padding` is how much more of it there is than needed."""
    random = np.random.default_rng(0)
    tokens = np.zeros([sum(COUNTS), TIME + 1], np.int32)
    lengths = random.integers(2, TIME + 2, len(tokens))
    offsets = np.append(0, np.cumsum(COUNTS))
    # A batch of short sentences, and one, of an update phase, that has nothing to predict at all.
    lengths[offsets[0] : offsets[0] + BATCH_SIZE] = [3, 2, 3]
    lengths[offsets[4] - BATCH_SIZE - 1 : offsets[4] - 1] = 1
    for row, length in zip(tokens, lengths):
        row[:length] = random.integers(1, NUM_KNOWN + BUCKETS, length)
    token, labels = (np.pad(t, [(0, 0), (0, padding)]) for t in (tokens[:, :-1], tokens[:, 1:]))
    known = token < NUM_KNOWN
    return ClientDataset(
        client_ids=np.array(list("abcde"), object),
        offsets=offsets,
        features={
            "token": token,
            "known_token": np.where(known, token, 0),
            "oov_token": np.where(known, 0, token - NUM_KNOWN),
        },
        labels=labels,
    )


SENTENCES = make_sentences()
START = np.random.default_rng(1).normal(size=[BUCKETS, 4]).astype(np.float32)


def build_keras_model(**options):
    return next_word_lstm(
        num_known=NUM_KNOWN,
        num_oov_buckets=BUCKETS,
        embedding_dim=4,
        lstm_units=5,
        projection_dim=4,
        **options,
    )


def make_model(*, local=True, lookups=LOOKUPS, trims=True, oov_initializer="uniform"):
    return PartitionedModel(
        build_keras_model(oov_initializer=oov_initializer),
        local_layers=["oov_embedding"] if local else [],
        loss=sum_cross_entropy,
        metrics=[
            token_accuracy("accuracy"),
            token_accuracy("without_oov", num_known=NUM_KNOWN, without=(2,)),
        ],
        lookups=lookups,
        label_spec=tf.TensorSpec([None, None], tf.int32),
        example_weight=count_tokens,
        unit="tokens",
        sequence_length=(lambda features, labels: count_tokens(labels)) if trims else None,
    )


def run(how, model, algorithm, *, dataset=SENTENCES, clients=3, cohorts=COHORTS):
    """Returns the final weights and each round's metrics."""
    execution = Execution(batch_size=BATCH_SIZE)
    if how != "per_client":
        execution = Execution(batch_size=BATCH_SIZE, clients_per_shard=clients, packing=how)
    process = build_process(model, algorithm, execution=execution, server_optimizer=SERVER)
    state, metrics = process.initialize(), []
    for indices in cohorts:
        touched = algorithm.touched_data
        cohort = make_cohort(model, dataset, indices, execution=execution, touched_data=touched)
        output = process.next(state, cohort.examples)
        state = output.state
        metrics.append(output.metrics)
    return dict(state.global_model_weights.trainable), metrics


def assert_same(one, other):
    """Compares (weights, metrics) of two runs."""
    assert one[0].keys() == other[0].keys()
    for name, value in one[0].items():
        close(value, other[0][name])
    assert len(one[1]) == len(other[1])
    for metrics, other_metrics in zip(one[1], other[1]):
        assert sorted(metrics) == sorted(other_metrics)
        for name, value in metrics.items():
            close(value, other_metrics[name])


def assert_moved(model, weights):
    start = model.initial_global_values()
    for name, value in weights.items():
        assert np.abs(value - start[name]).max() > 1e-3


# How TFF is told.


def token_losses(labels, logits):
    """Of each token, by TensorFlow's own cross-entropy, and whether it counts."""
    labels = tf.cast(labels, tf.int32)  # A metric gets floats.
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return losses, tf.cast(tf.not_equal(labels, 0), tf.float32)


class MeanOverTokens(tf.keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        losses, counts = token_losses(y_true, y_pred)
        return tf.math.divide_no_nan(tf.reduce_sum(losses * counts), tf.reduce_sum(counts))


class TokenLoss(tf.keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(*token_losses(y_true, y_pred))


SPLITS_OF_TFF = {
    "skip": tff.learning.models.ReconstructionModel.build_dataset_split_fn(
        recon_epochs=2,
        recon_steps_max=5,
        post_recon_epochs=2,
        post_recon_steps_max=4,
        split_dataset=True,
    )
}


def _halves(dataset):
    count = dataset.reduce(np.int64(0), lambda n, _: n + 1)
    half = (count + 1) // 2
    return dataset.take(half).repeat(2).take(5), dataset.skip(half).repeat(2).take(4)


SPLITS_OF_TFF["aggregated"] = _halves


def run_tff(model, *, client, reconstruction, split):
    """Returns the final weights by our names, and each round's loss; the LSTM is Keras' own."""
    spec = collections.OrderedDict(
        x=collections.OrderedDict(sorted(model.input_spec.items())), y=model.label_spec
    )

    def keras_lstm(units, name):
        return tf.keras.layers.LSTM(units, return_sequences=True, name=name)

    def model_fn():
        keras_model = build_keras_model(
            oov_initializer=tf.keras.initializers.Constant(START), recurrent_layer=keras_lstm
        )()
        layers = [layer for layer in keras_model.layers if layer.variables]
        return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
            keras_model=keras_model,
            global_layers=[layer for layer in layers if layer.name != "oov_embedding"],
            local_layers=[layer for layer in layers if layer.name == "oov_embedding"],
            input_spec=spec,
        )

    process = tff.learning.algorithms.build_fed_recon(
        model_fn,
        loss_fn=MeanOverTokens,
        metrics_fn=lambda: [TokenLoss(name="tokens")],
        server_optimizer_fn=SERVER,
        client_optimizer_fn=client,
        reconstruction_optimizer_fn=reconstruction,
        dataset_split_fn=SPLITS_OF_TFF[split],
        client_weighting=lambda metrics: metrics["tokens"][1],
    )
    start = model.initial_global_values()
    names = [v.name for v in model.global_variables]
    state = process.set_model_weights(
        process.initialize(),
        tff.learning.models.ModelWeights([start[name] for name in names], []),
    )
    losses = []
    for indices in COHORTS:
        cohort = client_datasets(model, SENTENCES, indices, batch_size=BATCH_SIZE)
        output = process.next(state, cohort)
        state = output.state
        losses.append(output.metrics["client_work"]["train"]["tokens"])
    return dict(zip(names, process.get_model_weights(state).trainable)), losses


@pytest.mark.parametrize(
    ("split", "client", "reconstruction"),
    [("skip", SGD, SGD), ("aggregated", ADAM, MOMENTUM)],
    ids=["skip", "aggregated"],
)
def test_fed_recon_is_tffs(split, client, reconstruction):
    model = make_model(oov_initializer=tf.keras.initializers.Constant(START))
    algorithm = fed_recon(
        client_optimizer=client,
        reconstruction_optimizer=reconstruction,
        support_query_split=split,
        reconstruction_epochs=2,
        max_reconstruction_steps=5,
        local_epochs=2,
        max_local_steps=4,
    )
    stacked = run("stacked", model, algorithm)
    for execution in ("pooled", "per_client") if split == "skip" else ("pooled",):
        assert_same(run(execution, model, algorithm), stacked)
    assert_moved(model, stacked[0])
    weights, losses = run_tff(model, client=client, reconstruction=reconstruction, split=split)
    for name, value in weights.items():
        close(stacked[0][name], value)
    close([metrics["loss"] for metrics in stacked[1]], losses)

    for cohort, metrics in zip(COHORTS, stacked[1]):
        sentences, tokens = processed(cohort, split, epochs=2, max_steps=4)
        assert (metrics["num_examples"], metrics["num_tokens"]) == (sentences, tokens)
        assert metrics["num_dropped_updates"] == 0


def processed(cohort, split, *, epochs, max_steps):
    """How many sentences and tokens the update phases of a cohort process."""
    sentences = tokens = 0
    for client in cohort:
        labels = SENTENCES.client(client)[1]
        batches = [labels[i : i + BATCH_SIZE] for i in range(0, len(labels), BATCH_SIZE)]
        query = batches[1::2] if split == "skip" else batches[-(-len(batches) // 2) :]
        for batch in (epochs * query)[:max_steps]:
            sentences += len(batch)
            tokens += (batch != 0).sum()
    return sentences, tokens


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_fed_avg_is_the_same_however_executed(optimizer):
    model = make_model(local=False)
    algorithm = fed_avg(client_optimizer=optimizer, local_epochs=2, max_local_steps=7)
    stacked = run("stacked", model, algorithm, clients=2, cohorts=COHORTS[:2])
    assert_same(run("pooled", model, algorithm, clients=2, cohorts=COHORTS[:2]), stacked)
    assert_moved(model, stacked[0])


def test_joint_training_and_all_that_options_change():
    """With a random start, each client's own, which no execution may have a say in."""
    model = make_model()
    algorithm = fed_recon(
        client_optimizer=tff.learning.optimizers.build_sgdm(1.0, momentum=0.8),
        reconstruction_optimizer=SGD,
        support_query_split="shared",
        joint_training=True,
        weighting="uniform",
        max_update_norm=2.0,
    )
    stacked = run("stacked", model, algorithm, cohorts=COHORTS[:1])
    assert_moved(model, stacked[0])
    assert_same(run("pooled", model, algorithm, cohorts=COHORTS[:1]), stacked)


def test_lookups_trimming_and_more_padding_change_nothing():
    algorithm = fed_recon(
        client_optimizer=SGD, reconstruction_optimizer=ADAM, support_query_split="aggregated"
    )
    cohorts = COHORTS[:1]
    plain = make_model(lookups={}, trims=False)
    # A model without lookups cannot be pooled: each client has weights of its own.
    expected = run("stacked", plain, algorithm, cohorts=cohorts)
    model, untrimmed = make_model(), make_model(trims=False)
    assert_same(run("stacked", model, algorithm, cohorts=cohorts), expected)
    assert_same(run("pooled", untrimmed, algorithm, cohorts=cohorts), expected)
    longer = make_sentences(padding=3)
    assert longer.labels.shape[1] == TIME + 3
    assert_same(run("pooled", model, algorithm, cohorts=cohorts, dataset=longer), expected)


def test_a_local_table_is_looked_up_like_any_other(make_dataset):
    """Of another model: several ids an example, two local tables of one input."""

    def build_model():
        words = tf.keras.Input([4], dtype=tf.int32, name="words")
        vectors = tf.keras.layers.Embedding(7, 2, name="vectors")(words)
        biases = tf.keras.layers.Embedding(7, 1, name="biases")(words)
        joined = tf.keras.layers.Flatten()(tf.keras.layers.Concatenate()([vectors, biases]))
        return tf.keras.Model({"words": words}, tf.keras.layers.Dense(1, name="shared")(joined))

    random = np.random.default_rng(5)
    dataset = make_dataset(
        [({"words": random.integers(0, 7, (n, 4))}, random.normal(size=n)) for n in COUNTS]
    )
    model, plain = (
        PartitionedModel(build_model, local_layers=["vectors", "biases"], lookups=lookups)
        for lookups in ({"vectors": "words", "biases": "words"}, {})
    )
    algorithm = fed_recon(
        client_optimizer=SGD, reconstruction_optimizer=MOMENTUM, reconstruction_epochs=3
    )
    expected = run("stacked", plain, algorithm, dataset=dataset)
    assert_moved(plain, expected[0])
    for execution in ("stacked", "pooled", "per_client"):
        assert_same(run(execution, model, algorithm, dataset=dataset), expected)

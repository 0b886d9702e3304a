"""Nothing of a client depends on others of its shard or on padding, whatever mixes its examples."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.audit.reference import Client, Reference
from fedpersonal.client.steps import train_clients
from fedpersonal.errors import UserError
from fedpersonal.evaluation.evaluate import build_evaluation
from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.packing import as_examples, pack_clients
from fedpersonal.federated.process import build_process
from fedpersonal.methods.algorithm import GradientPhase
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.methods.furl import furl
from fedpersonal.model.metrics import MAE, Metric
from fedpersonal.model.mixing import find_mixing
from fedpersonal.model.partition import PartitionedModel

BATCH_SIZE = 4
TABLE = "table/embeddings"
COUNTS = (6, 3, 9, 1)
SGD = tff.learning.optimizers.build_sgdm(0.03)
FURL = furl(client_optimizer=SGD, local_epochs=1)


def centred(labels, predictions):
    return tf.square((predictions - tf.reduce_mean(predictions)) - (labels - 0.5))


def in_batch_negatives(labels, predictions):
    unit = tf.tanh(predictions)
    scores = tf.nn.log_softmax(tf.matmul(unit, unit, transpose_b=True))
    return tf.square(predictions - labels)[:, 0] - tf.linalg.diag_part(scores)


def of_a_batch(labels, predictions):
    return tf.reduce_mean(tf.square(predictions - labels)) + tf.math.reduce_variance(predictions)


def balanced(labels, predictions):
    positive = tf.reduce_mean(labels)
    return tf.square(predictions - labels) * tf.where(labels > 0, 1 - positive, positive)


def label_share(labels):
    """Labels of which a batch has more weigh less."""
    same = tf.cast(tf.equal(labels[:, tf.newaxis], labels[tf.newaxis]), tf.float32)
    return 1.0 / tf.reduce_sum(same, -1)


AGAINST_MEAN = Metric("against_mean", lambda y, p: tf.abs((p - tf.reduce_mean(p)) - y))


class Centred(tf.keras.layers.Layer):
    """Batch statistics by another name, in training or always."""

    def __init__(self, always=True):
        super().__init__()
        self._always = always

    def call(self, inputs, training=None):
        return inputs - tf.reduce_mean(inputs, 0) if training or self._always else inputs


class Spread(tf.keras.layers.Layer):
    """Adds a loss of the whole batch."""

    def call(self, inputs):
        self.add_loss(tf.math.reduce_variance(inputs))
        return inputs


def build_with(layer):
    def build():
        word = tf.keras.Input([], dtype=tf.int32, name="word")
        x = tf.keras.Input([2], name="x")
        table = tf.keras.layers.Embedding(5, 3, name="table")(word)
        hidden = tf.keras.layers.Dense(3, activation="tanh", name="shared")(x) + table
        hidden = tf.keras.layers.Dropout(0.3)(hidden)
        output = tf.keras.layers.Dense(1, name="own")(layer()(hidden) if layer else hidden)
        return tf.keras.Model({"word": word, "x": x}, output)

    return build


def model_of(layer=None, **options):
    given = {"loss": "mse", "metrics": [MAE], "lookups": {"table": "word"}, **options}
    return PartitionedModel(build_with(layer), local_layers=["own"], **given)


def both_squeezed(labels, predictions):
    return tf.square(tf.squeeze(labels, -1) - tf.squeeze(predictions, -1))


MIXING = {
    "centred": {"loss": centred},
    "in-batch negatives": {"loss": in_batch_negatives},
    "of a batch": {"loss": of_a_batch},
    "balanced": {"loss": balanced},
    "weights and metrics": {
        "example_weight": label_share,
        "metrics": [AGAINST_MEAN, dataclasses.replace(MAE, example_weight=label_share)],
    },
    "layers": {"layer": lambda: tf.keras.Sequential([Centred(), Spread()])},
    "a layer in training": {"layer": lambda: Centred(always=False)},
}
FUNCTIONS = {
    "the loss": {"loss": centred},
    "metric 'against_mean'": {"metrics": [AGAINST_MEAN]},
    "the weight of metric 'mae'": {
        "metrics": [dataclasses.replace(MAE, example_weight=label_share)]
    },
    "example_weight": {"example_weight": label_share, "metrics": []},
}


@pytest.fixture(name="clients", scope="module")
def _clients(make_dataset):
    random = np.random.default_rng(1)

    def client(count):
        x = random.normal(size=(count, 2)).astype(np.float32)
        word = random.integers(0, 5, count).astype(np.int32)
        return {"x": x, "word": word}, random.integers(0, 2, count).astype(np.float32)

    return make_dataset(list(map(client, COUNTS)))


def weights_of(model):
    random = np.random.default_rng(3)
    return {v.name: random.normal(size=v.shape).astype(np.float32) for v in model.global_variables}


def train(model, clients):
    """Trains all clients in a shard with room for one more."""
    packed = pack_clients(model, clients, range(4), clients_per_shard=5, batch_size=BATCH_SIZE)

    @tf.function(autograph=False)
    def run():
        examples = tf.nest.map_structure(tf.constant, as_examples(model, packed))
        start = {name: tf.constant(value) for name, value in weights_of(model).items()}
        return train_clients(model, FURL, start, examples, tf.constant([0, 0]))

    output = tf.nest.map_structure(lambda t: t.numpy(), run())
    whole = np.zeros((5, 5, 3), np.float32)
    for client, rows in enumerate(packed["rows"][TABLE]):
        np.add.at(whole[client], rows, output.updates[TABLE][client])
    return output._replace(updates={**output.updates, TABLE: whole})


@pytest.mark.parametrize("name", MIXING)
def test_a_client_in_a_shard_is_the_client_alone(clients, name):
    """That of the plain reference: one client, one batch after another, without padding."""
    model = model_of(**MIXING[name])
    output = train(model, clients)
    reference = Reference(model, FURL, batch_size=BATCH_SIZE, seed=0)
    same = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    for place in range(4):
        client = Client(*clients.client(place))
        local = reference.fresh_local_values(client, 0)
        expected = reference.run(weights_of(model), local, client, 0)
        same(output.weights[place], expected.weight)
        for variable, value in expected.updates.items():
            same(-output.updates[variable][place], value)
        for variable, values in output.local_values.items():
            same(values[place], reference._variables[variable].numpy())
        for metric, sums in output.metric_sums.items():
            same(sums[place], expected.sums[metric])


def test_an_evaluated_client_is_the_client_alone(clients):
    model = model_of(
        **{**MIXING["layers"], **MIXING["weights and metrics"]}, loss=in_batch_negatives
    )

    def evaluate(some):
        phases = [GradientPhase("local", "all", SGD)]
        options = {"batch_size": BATCH_SIZE, "with_before": False}
        return build_evaluation(model, phases, some, some, **options)(weights_of(model)).after

    together = evaluate(clients)
    for place in (0, 2):
        for name, sums in evaluate(clients.subset([place])).items():
            np.testing.assert_allclose(together[name][place], sums[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_depends_on_others_is_named(name):
    assert find_mixing(model_of(**FUNCTIONS[name]), training=True).functions == (name,)


@pytest.mark.parametrize(
    "loss", ["mse", "binary_crossentropy", lambda y, p: tf.square(y - p), both_squeezed]
)
def test_what_takes_each_example_alone_stays_with_all_clients_at_once(loss):
    assert find_mixing(model_of(loss=loss), training=True) == (False, (), False)


def test_rounding_in_a_big_recurrent_layer_is_not_mixing():
    def build():
        layer = tf.keras.layers.LSTM(670, return_sequences=True)
        return tf.keras.Sequential([tf.keras.Input([20, 96]), layer, tf.keras.layers.LSTM(1)])

    assert find_mixing(PartitionedModel(build), training=True) == (False, (), False)


def test_a_layer_may_mix_in_training_alone():
    model = model_of(**MIXING["a layer in training"])
    assert [find_mixing(model, training=way).rows for way in (False, True)] == [False, True]


def one_squeezed(labels, predictions):
    return tf.square(tf.squeeze(predictions, -1) - labels)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": one_squeezed}, r"^the loss returns shape \(7, 7\) for 7 examples.*\(7, 1\)"),
        ({"metrics": [one_squeezed]}, r"^metric 'one_squeezed' returns shape \(7, 7\)"),
        (
            {"metrics": [Metric("own", lambda y, p: tf.square(p[:, tf.newaxis] - y))]},
            r"^metric 'own' returns shape \(7, 7\).*labels come as \(7,\)",
        ),
        ({"example_weight": tf.reduce_max, "metrics": []}, r"^example_weight returns shape \(\)"),
    ],
)
def test_what_pairs_each_example_with_all_others_is_refused(options, said):
    with pytest.raises(UserError, match=said):
        process_of(model_of(**options))


def process_of(model, algorithm=FURL, packing="stacked"):
    execution = Execution(batch_size=BATCH_SIZE, clients_per_shard=4, packing=packing)
    return build_process(model, algorithm, execution=execution, server_optimizer=SGD)


def test_pooled_clients_share_no_batch_that_mixes():
    with pytest.raises(UserError, match="pooled.*output of this model.*depends on the others"):
        process_of(model_of(**MIXING["a layer in training"]), packing="pooled")
    with pytest.raises(UserError, match="pooled.*metric 'against_mean'.*depends on the others"):
        process_of(model_of(metrics=[AGAINST_MEAN]), packing="pooled")


def test_exact_reconstruction_takes_no_layer_that_mixes():
    algorithm = fed_recon(client_optimizer=SGD, reconstruction="ridge")
    with pytest.raises(ValueError, match="ridge reconstruction.*depends on the others"):
        process_of(model_of(Centred), algorithm)

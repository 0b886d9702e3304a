"""What makes an example's result depend on others of its batch: found, and refused or named.

That nothing of a client depends on others of its shard is in the tables of rounds and evaluations.
"""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf
from round_models import AGAINST_MEAN, Centred, build_with, in_batch_negatives, label_share

from fedpersonal.errors import UserError
from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.methods.furl import furl
from fedpersonal.model.metrics import MAE, Metric
from fedpersonal.model.mixing import find_mixing
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.tff.optimizers import build_sgdm

SGD = build_sgdm(0.03)
FURL = furl(client_optimizer=SGD, local_epochs=1)


def centred(labels, predictions):
    return tf.square((predictions - tf.reduce_mean(predictions)) - (labels - 0.5))


def model_of(layer=None, **options):
    given = {"metrics": [MAE], **options}
    return PartitionedModel(build_with(layer), local_layers=["own"], **given)


def both_squeezed(labels, predictions):
    return tf.square(tf.squeeze(labels, -1) - tf.squeeze(predictions, -1))


FUNCTIONS = {
    "the loss": [{"loss": centred}, {"loss": in_batch_negatives}],
    "metric 'against_mean'": [{"metrics": [AGAINST_MEAN]}],
    "the weight of metric 'mae'": [
        {"metrics": [dataclasses.replace(MAE, example_weight=label_share)]}
    ],
    "example_weight": [{"example_weight": label_share, "metrics": []}],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_depends_on_others_is_named(name):
    for options in FUNCTIONS[name]:
        assert find_mixing(model_of(**options), training=True).functions == (name,)


@pytest.mark.parametrize(
    "loss", ["mse", "binary_crossentropy", lambda y, p: tf.square(y - p), both_squeezed]
)
def test_what_takes_each_example_alone_stays_with_all_clients_at_once(loss):
    assert find_mixing(model_of(loss=loss), training=True) == (False, (), False)


def test_labels_of_a_trial_are_classes_that_there_are():
    """Of others TensorFlow would log a line, whatever catches its error."""
    tried = []

    def loss(labels, predictions):
        if tf.executing_eagerly():
            tried.extend(tf.reshape(labels, [-1]).numpy().tolist())
        return tf.keras.losses.sparse_categorical_crossentropy(labels, predictions, True)

    def build():
        return tf.keras.Sequential([tf.keras.Input([2], name="x"), tf.keras.layers.Dense(4)])

    for dtype in (tf.float32, tf.int32):
        model = PartitionedModel(build, loss=loss, label_spec=tf.TensorSpec([None], dtype))
        assert find_mixing(model, training=True) == (False, (), False)
    assert 2 <= max(tried) < 4 and min(tried) == 0


@pytest.mark.exhaustive
def test_rounding_in_a_big_recurrent_layer_is_not_mixing():
    def build():
        layer = tf.keras.layers.LSTM(670, return_sequences=True)
        return tf.keras.Sequential([tf.keras.Input([20, 96]), layer, tf.keras.layers.LSTM(1)])

    assert find_mixing(PartitionedModel(build), training=True) == (False, (), False)


def test_a_layer_may_mix_in_training_alone():
    model = model_of(lambda: Centred(always=False))
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
            r"^metric 'own' returns shape \(7, 7\).*labels have shape \(7,\)",
        ),
        ({"example_weight": tf.reduce_max, "metrics": []}, r"^example_weight returns shape \(\)"),
    ],
)
def test_what_pairs_each_example_with_all_others_is_refused(options, said):
    with pytest.raises(UserError, match=said):
        process_of(model_of(**options))


def process_of(model, algorithm=FURL, packing="stacked"):
    execution = Execution(batch_size=4, clients_per_shard=4, packing=packing)
    return build_process(model, algorithm, execution=execution, server_optimizer=SGD)


def test_pooled_clients_share_no_batch_that_mixes():
    with pytest.raises(UserError, match="pooled.*output of this model.*depends on the others"):
        process_of(model_of(lambda: Centred(always=False)), packing="pooled")
    with pytest.raises(UserError, match="pooled.*metric 'against_mean'.*depends on the others"):
        process_of(model_of(metrics=[AGAINST_MEAN]), packing="pooled")


def test_exact_reconstruction_takes_no_layer_that_mixes():
    algorithm = fed_recon(client_optimizer=SGD, reconstruction="ridge")
    with pytest.raises(ValueError, match="ridge reconstruction.*depends on the others"):
        process_of(model_of(Centred), algorithm)

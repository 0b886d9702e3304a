"""Several values of each variable: how they start, and how a model is applied with one of them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.evaluation.personalize import personalize
from fedpersonal.methods.phases import ChoicePhase
from fedpersonal.model.clusters import ClusteredModel
from fedpersonal.model.files import to_keras
from fedpersonal.model.names import CLUSTER, CLUSTER_SHARES
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models.factorization import matrix_factorization

ITEM, USER = "item_embedding/embeddings", "user_embedding/embeddings"
BASE = PartitionedModel(
    matrix_factorization(num_items=4, num_users=3, embedding_dim=2),
    lookups={"item_embedding": "item", "user_embedding": "user"},
    per_client_tables=["user_embedding"],
)


def test_clusters_start_apart_the_first_as_a_model_without_clusters():
    model = ClusteredModel(BASE, 3, ["item_embedding"], has_shares=True)
    shapes = {v.name: v.shape for v in model.global_variables}
    assert shapes == {USER: (3, 2), ITEM: (4, 2, 3), CLUSTER_SHARES: (3,)}
    assert model.global_tables == BASE.global_tables and model.server_rows_per_client == {USER}
    start, plain = model.initial_global_values(seed=1), BASE.initial_global_values(seed=1)
    np.testing.assert_array_equal(start[ITEM][..., 0], plain[ITEM])
    np.testing.assert_array_equal(start[USER], plain[USER])
    assert (np.diff(start[ITEM], axis=-1) != 0).all()
    np.testing.assert_array_equal(model.initial_local_values()[CLUSTER], [1, 0, 0])


def test_the_model_is_applied_with_the_chosen_cluster():
    model, random = ClusteredModel(BASE, 3), np.random.default_rng(0)
    values = {v.name: random.normal(size=v.shape).astype(np.float32) for v in model.variables}
    values[CLUSTER] = np.float32([0, 0, 1])
    ids = {"user": np.array([2, 0], np.int32), "item": np.array([1, 3], np.int32)}
    expected = (values[USER][ids["user"], :, 2] * values[ITEM][ids["item"], :, 2]).sum(-1)
    predict = tf.function(lambda: model.predict(values, ids, training=False)[0], autograph=False)
    for found in (predict(), to_keras(model, values)(ids)):
        np.testing.assert_allclose(np.ravel(found), expected, rtol=1e-5)


def test_who_mixes_clusters_says_what_they_make_likely_on_average():
    def build():
        inputs = tf.keras.Input([2], name="x")
        return tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="head")(inputs))

    x, kernel = np.float32([[1, 0], [0, 1]]), np.log(np.float32([[[1, 3]], [[9, 1]]]))
    bias, weights = np.zeros([1, 2], np.float32), np.float32([0.2, 0.8])
    values = {"head/kernel": kernel, "head/bias": bias, CLUSTER: weights}
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model = ClusteredModel(PartitionedModel(build, loss=loss), 2, mixes=True)
    np.testing.assert_array_equal(model.initial_local_values()[CLUSTER], [0.5, 0.5])
    predict = tf.function(
        lambda: model.predict(values, {"x": x}, training=False)[0], autograph=False
    )
    mixed = [0.2 * 0.5 + 0.8 * 0.75, 0.2 * 0.9 + 0.8 * 0.5]
    np.testing.assert_allclose(tf.sigmoid(predict())[:, 0], mixed, rtol=1e-5)
    with pytest.raises(UserError, match="no single Keras model predicts as they do"):
        to_keras(model, values)


def test_mixtures_of_what_is_not_likely_are_refused():
    with pytest.raises(
        UserError, match="require labels that are classes.*the loss 'mse' is for numbers"
    ):
        ClusteredModel(BASE, 2, mixes=True)
    x = tf.keras.Input([2], name="x")
    model = PartitionedModel(
        lambda: tf.keras.Model(x, tf.keras.layers.Dense(3, activation=tf.nn.softmax)(x)),
        loss="sparse_categorical_crossentropy",
    )
    model = ClusteredModel(model, 2, mixes=True)
    values = {**model.initial_global_values(), **model.initial_local_values()}
    with pytest.raises(UserError, match="takes probabilities, and the output has others"):
        inputs = {"x": tf.ones([1, 2])}
        tf.function(lambda: model.predict(values, inputs, training=False), autograph=False)()


def test_clusters_that_would_start_alike_are_refused():
    layers = [tf.keras.Input([2], name="x"), tf.keras.layers.Dense(1, name="head")]
    with pytest.raises(UserError, match="all 2 would start alike.*a function that builds it"):
        ClusteredModel(PartitionedModel(tf.keras.Sequential(layers)), 2)


@pytest.mark.parametrize(("count", "chosen"), [(0, 1), (4, 2)])
def test_who_has_no_examples_keeps_the_choice_that_others_make_anew(count, chosen):
    model, none = ClusteredModel(BASE, 3), np.zeros(count, np.int32)
    weights = {v.name: np.ones(v.shape, np.float32) for v in model.global_variables}
    weights[ITEM] *= np.float32([0, 1, 2])  # Ratings of 0, 2 and 4.
    client = ClientDataset(["a"], [0, count], {"user": none, "item": none}, np.float32(none + 5))
    kept = {CLUSTER: np.float32([0, 1, 0])}
    phases = (ChoicePhase("all", 3),)
    values = personalize(model, phases, weights, client, kept=kept, batch_size=3)
    np.testing.assert_array_equal(values[CLUSTER], np.eye(3)[chosen])

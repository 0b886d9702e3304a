"""Which clients take their one step together; that it comes to the same is a case of the table."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.client.one_gradient import may_step_together
from fedpersonal.methods.fed_rep import fed_rep
from fedpersonal.methods.furl import furl
from fedpersonal.model.partition import PartitionedModel

SGD = tff.learning.optimizers.build_sgdm(0.3)
MOMENTUM = tff.learning.optimizers.build_sgdm(0.3, momentum=0.9)


def model_of(penalty=None):
    def build():
        user = tf.keras.Input([], dtype=tf.int32, name="user")
        vector = tf.keras.layers.Embedding(1, 3, name="user_embedding")(user)
        dense = tf.keras.layers.Dense(1, kernel_regularizer=penalty, name="out")
        return tf.keras.Model({"user": user}, dense(vector))

    lookups = {"user_embedding": "user"}
    return PartitionedModel(build, local_layers=["user_embedding"], lookups=lookups)


@pytest.mark.parametrize(
    "algorithm",
    [
        furl(client_optimizer=MOMENTUM),
        furl(client_optimizer=SGD, local_optimizer=MOMENTUM),
        furl(client_optimizer=SGD, max_update_norm=1.0),
        fed_rep(client_optimizer=SGD),
    ],
)
def test_what_cannot_step_together(algorithm):
    assert not may_step_together(model_of(), algorithm)


def test_a_penalty_of_the_batch_is_each_clients_own():
    algorithm = furl(client_optimizer=SGD)
    assert may_step_together(model_of(), algorithm)
    assert not may_step_together(model_of("l2"), algorithm)

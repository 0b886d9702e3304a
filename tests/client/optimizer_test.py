"""Optimizers and terms of a phase that are refused; the others are cases of the table of rounds."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.methods.fedperc import fedperc
from fedpersonal.model.partition import PartitionedModel

SGD = tff.learning.optimizers.build_sgdm(0.1)


def test_weights_that_are_refused():
    for mu in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="GradientPhase: proximal must be at least 0, not"):
            fedperc(client_optimizer=SGD, proximal=mu)


def test_weight_decay_refuses_lookups():
    def build():
        word = tf.keras.Input([], dtype=tf.int32, name="word")
        row = tf.keras.layers.Embedding(6, 2, name="table")(word)
        return tf.keras.Model({"word": word}, tf.keras.layers.Dense(1)(row))

    model = PartitionedModel(build, lookups={"table": "word"})
    algorithm = fed_avg(client_optimizer=tff.learning.optimizers.build_adamw(0.1))
    with pytest.raises(ValueError, match="weight decay.*table/embeddings.*lookups"):
        build_process(model, algorithm, execution=Execution(batch_size=2), server_optimizer=SGD)

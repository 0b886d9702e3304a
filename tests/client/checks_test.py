"""Phases against a model: names that nothing has, and optimizers that cannot be used."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.client.optimizer import check_phases, optimizer_of
from fedpersonal.errors import UserError
from fedpersonal.evaluation.evaluate import build_evaluation
from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.process import build_process
from fedpersonal.methods.algorithm import Algorithm, GradientPhase, RidgePhase
from fedpersonal.model.partition import PartitionedModel

SGD, ADAM = tff.learning.optimizers.build_sgdm(0.1), tff.learning.optimizers.build_adam(0.1)
KERAS_SGD = tf.keras.optimizers.SGD(0.1)


@pytest.fixture(name="model", scope="module")
def _model():
    def build_model():
        x = tf.keras.Input([3], name="x")
        hidden = tf.keras.layers.Dense(2, name="base")(x)
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="head")(hidden))

    return PartitionedModel(build_model, local_layers=["head/bias"])


def test_phases_that_fit(model):
    names = ("base", "head/kernel")
    optimizers = {"head": ADAM, "head/bias": SGD, "local": ADAM}
    check_phases(
        model,
        [RidgePhase("all", 1.0), GradientPhase(names, "all", KERAS_SGD, optimizers=optimizers)],
    )


def test_the_most_specific_optimizer_counts(model):
    optimizers = {"local": ADAM, "head": KERAS_SGD}
    phase = GradientPhase("all", "all", SGD, optimizers=optimizers)
    found = {v.name: optimizer_of(phase, v) for v in model.variables}
    assert found["base/kernel"] is SGD
    # Equal objects step together, so a Keras one has one counterpart.
    assert found["head/kernel"] is found["head/bias"] is optimizer_of(phase, model.variables[-1])
    own = GradientPhase("all", "all", SGD, optimizers={"local": ADAM})
    assert optimizer_of(own, model.local_variables[0]) is ADAM


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (
            GradientPhase(("base", "haed"), "all", SGD),
            "phase 0: variables: 'haed' names no variable of the model; did you mean 'head'",
        ),
        (
            GradientPhase("all", "all", SGD, optimizers={"local": ADAM, "bsae": ADAM}),
            "phase 0: optimizers: 'bsae' names no variable of the model; did you mean 'base'",
        ),
        (
            GradientPhase("all", "all", tf.keras.optimizers.RMSprop(0.1)),
            "RMSprop has no counterpart",
        ),
    ],
)
def test_phases_that_are_refused(model, make_dataset, phase, message):
    somebody = make_dataset([({"x": [[0.0, 0.0, 0.0]]}, [0.0])])
    algorithm = Algorithm("own", (phase,), local_variables="rebuilt")
    with pytest.raises(UserError, match=message):
        build_process(model, algorithm, execution=Execution(batch_size=1), server_optimizer=SGD)
    with pytest.raises(UserError, match=message):
        build_evaluation(model, (phase,), somebody, somebody, batch_size=1)

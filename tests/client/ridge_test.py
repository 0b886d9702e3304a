"""Which models exact reconstruction takes; what it solves for is in the table of rounds."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.client.ridge import check_linear, solve_local_values
from fedpersonal.client.values import ClientValues, Examples
from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.methods.phases import RidgePhase
from fedpersonal.model.lookups import random_values
from fedpersonal.model.mixing import find_mixing
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.personal import PersonalModel
from fedpersonal.tff.optimizers import build_sgdm


def dense_model(*, units=1, local=("own",), activation=None, use_bias=False):
    def build_model():
        x = tf.keras.Input([3], name="x")
        shared = tf.keras.layers.Dense(4, activation="tanh", use_bias=use_bias, name="shared")(x)
        own = tf.keras.layers.Dense(units, activation=activation, use_bias=use_bias, name="own")(
            shared
        )
        output = tf.keras.layers.Dense(units, use_bias=False, name="last")(own)
        return tf.keras.Model({"x": x}, output)

    return PartitionedModel(build_model, local_layers=local)


def test_a_model_is_checked_once_and_built_once_for_it():
    built = []

    def build_model():
        built.append(1)
        return tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(1, name="own")])

    model = PartitionedModel(build_model, local_layers=["own"])
    for check in (lambda m: find_mixing(m, training=False), check_linear):
        built.clear()
        check(model)
        check(model)
        assert len(built) == 1


LINEAR = "ridge reconstruction needs a model that is linear in its local variables.*own/kernel"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "tanh"}, LINEAR),
        ({"activation": "relu", "use_bias": True}, LINEAR),
        ({"activation": "relu"}, LINEAR),
        ({"local": ["own", "last"]}, LINEAR),
        ({"units": 2}, r"ridge.*one output an example.*\(1, 2\)"),
        ({"local": []}, "ridge reconstruction needs local variables"),
    ],
)
def test_models_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        check_linear(dense_model(**options))


def test_training_refuses_at_once():
    sgd = build_sgdm(0.2)
    with pytest.raises(ValueError, match=LINEAR):
        build_process(
            dense_model(activation="tanh"),
            fed_recon(client_optimizer=sgd, reconstruction="ridge"),
            execution=Execution(batch_size=3, clients_per_shard=2),
            server_optimizer=sgd,
        )


@pytest.mark.parametrize(("is_personal", "reads"), [(False, False), (True, False), (True, True)])
def test_what_predictions_do_not_read_is_not_repeated_for_each_example(is_personal, reads):
    """A client's state is as large as the model: once an example, it took gigabytes."""
    model = PersonalModel(dense_model(), ["last"], role="model" if reads else "state")
    view = model.personal if is_personal else model
    (copied,) = model.copies
    assert copied.endswith("last/kernel") and (copied in view.ignored_locals) is not reads
    values, x = random_values(model, seed=3), tf.random.stateless_normal([2, 1, 5, 3], [0, 1])
    own = {v.name: tf.stack([values[v.name]] * 2) for v in model.local_variables}
    shared = {v.name: values[v.name] for v in model.global_variables}
    examples = Examples({"x": x}, tf.ones([2, 1, 5]), tf.ones([2, 1, 5]), {}, {})
    phase = RidgePhase(data="all", l2=0.1)

    def solved(*, clients):
        given = {**own, copied: tf.repeat(own[copied], clients, 0)}
        found = solve_local_values(
            view, phase, ClientValues(shared, given), examples, examples.mask
        )
        return found["own/kernel"].numpy()

    if reads:
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            solved(clients=3)
    else:  # Of so many clients it is of no use.
        np.testing.assert_array_equal(solved(clients=3), solved(clients=1))


@pytest.mark.parametrize("option", ["l2", "bias_l2"])
def test_penalties_are_positive(option):
    with pytest.raises(ValueError, match=f"{option} must be positive, not 0"):
        RidgePhase(**{"data": "all", "l2": 1.0, option: 0.0})


def test_a_penalty_may_be_an_integer():
    sgd = build_sgdm(0.2)
    algorithm = fed_recon(client_optimizer=sgd, reconstruction="ridge", ridge_l2=10)
    execution = Execution(batch_size=3, clients_per_shard=2)
    build_process(dense_model(), algorithm, execution=execution, server_optimizer=sgd)

"""Phases against a model: which optimizers count, what is refused, what is computed at once.

What phases compute is in the tables of rounds and of evaluations.
"""

from __future__ import annotations

import collections
import types

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.client import pooled_batches
from fedpersonal.client.one_gradient import may_step_together
from fedpersonal.client.optimizer import check_phases, optimizer_of, plain_sgd_rate
from fedpersonal.errors import UserError
from fedpersonal.evaluation.evaluate import build_evaluation
from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.process import build_process
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.methods.fed_rep import fed_rep
from fedpersonal.methods.furl import furl
from fedpersonal.methods.method import Layers, methods
from fedpersonal.methods.phases import GradientPhase, RidgePhase
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.personal import PersonalModel
from fedpersonal.optimizers import LinearDecay, ScheduledOptimizer
from fedpersonal.tff.optimizers import build_adam, build_adamw, build_sgdm

SGD, ADAM = build_sgdm(0.1), build_adam(0.1)
MOMENTUM = build_sgdm(0.1, momentum=0.9)
KERAS_SGD = tf.keras.optimizers.SGD(0.1)


@pytest.fixture(name="model", scope="module")
def _model():
    def build_model():
        x = tf.keras.Input([3], name="x")
        hidden = tf.keras.layers.Dense(2, name="base")(x)
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="head")(hidden))

    return PartitionedModel(build_model, local_layers=["head/bias"])


def constrained():
    x = tf.keras.Input([3], name="x")
    head = tf.keras.layers.Dense(1, kernel_constraint="non_neg", name="head")
    return tf.keras.Model({"x": x}, head(x))


def test_steps_without_a_gradient_keep_no_constraint():
    model = PartitionedModel(constrained, local_layers=["head"])
    check_phases(model, [GradientPhase("all", "all", SGD)])
    with pytest.raises(UserError, match="RidgePhase moves 'head/kernel', which has a Keras"):
        check_phases(model, [RidgePhase("all", 1.0)])
    with pytest.raises(UserError, match="'head/kernel' has a Keras constraint, which adding"):
        PersonalModel(PartitionedModel(constrained), role="offset")


def test_the_most_specific_optimizer_counts(model):
    optimizers = {"local": ADAM, "head": KERAS_SGD}
    phase = GradientPhase("all", "all", SGD, optimizers=optimizers)
    found = {v.name: optimizer_of(phase, v) for v in model.variables}
    assert found["base/kernel"] is SGD
    # Equal objects step together, so a Keras one has one counterpart.
    assert found["head/kernel"] is found["head/bias"] is optimizer_of(phase, model.variables[-1])
    own = GradientPhase("all", "all", SGD, optimizers={"local": ADAM})
    assert optimizer_of(own, model.local_variables[0]) is ADAM
    check_phases(model, [RidgePhase("all", 1.0), phase])


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
    ],
)
def test_phases_that_are_refused(model, make_dataset, phase, message):
    somebody = make_dataset([({"x": [[0.0, 0.0, 0.0]]}, [0.0])])
    algorithm = Algorithm("own", (phase,), local_variables="rebuilt")
    with pytest.raises(UserError, match=message):
        build_process(model, algorithm, execution=Execution(batch_size=1), server_optimizer=SGD)
    with pytest.raises(UserError, match=message):
        build_evaluation(model, (phase,), somebody, somebody, batch_size=1)


def table_model(*, local, penalty=None):
    def build():
        user = tf.keras.Input([], dtype=tf.int32, name="user")
        vector = tf.keras.layers.Embedding(1, 3, name="table")(user)
        dense = tf.keras.layers.Dense(1, kernel_regularizer=penalty, name="out")
        return tf.keras.Model({"user": user}, dense(vector))

    local_layers = ["table"] if local else []
    return PartitionedModel(build, local_layers=local_layers, lookups={"table": "user"})


def test_weight_decay_refuses_lookups():
    algorithm = fed_avg(client_optimizer=build_adamw(0.1))
    with pytest.raises(ValueError, match="weight decay.*table/embeddings.*lookups"):
        build_process(
            table_model(local=False), algorithm,
            execution=Execution(batch_size=2), server_optimizer=SGD,
        )  # fmt: skip


def test_a_loss_of_a_batch_is_refused_where_clients_share_it(make_dataset):
    model, words = table_model(local=True, penalty="l2"), {"user": np.zeros(3, np.int32)}
    clients = make_dataset([(words, np.zeros(3))] * 2)
    evaluate = build_evaluation(
        model, [GradientPhase("local", "all", SGD)], clients, clients,
        batch_size=2, packing="pooled",
    )  # fmt: skip
    with pytest.raises(ValueError, match="one value an example from add_loss.*stacked execution"):
        evaluate(model.initial_global_values())


@pytest.mark.parametrize(
    ("algorithm", "penalty", "may"),
    [
        (furl(client_optimizer=SGD), None, True),
        (furl(client_optimizer=SGD), "l2", False),  # A penalty of the batch is each client's.
        (furl(client_optimizer=MOMENTUM), None, False),
        (furl(client_optimizer=SGD, local_optimizer=MOMENTUM), None, False),
        (furl(client_optimizer=SGD, max_update_norm=1.0), None, False),
        (fed_rep(client_optimizer=SGD), None, False),
    ],
)
def test_what_can_be_one_gradient(algorithm, penalty, may):
    assert may_step_together(table_model(local=True, penalty=penalty), algorithm) is may


@pytest.mark.parametrize(
    ("labels", "places", "chunks"),
    [
        ([None, None], None, [[7, 4, 3], [3, 2, 1], [0]]),
        # As many as have 8 places if they are as long as the first, and 3 at the most.
        ([None, None], 8, [[7], [4, 3], [3, 2], [1, 0]]),
        ([None], 8, [[7], [4, 3], [3, 2], [1, 0]]),
        ([None], 1, [[7], [4], [3], [3], [2], [1], [0]]),
        # With one label each there are 10 places at the most, unasked, and 5 of them.
        ([None], None, [[7], [4, 3], [3, 2, 1], [0]]),
    ],
)
def test_chunks_are_as_large_as_asked(monkeypatch, labels, places, chunks):
    for name, size in {"CHUNK": 5, "SMALL_CHUNK": 3, "PLACES": 10}.items():
        monkeypatch.setattr(pooled_batches, name, size)
    lengths, rows = np.array([0, 4, 1, 7, 3, 3, 2], np.int32), np.array([3, 1, 4, 5, 6, 2, 0])
    spec = tf.TensorSpec(labels, tf.int32)
    model = types.SimpleNamespace(chunk_places=places, label_spec=spec)
    pool = types.SimpleNamespace(lengths=tf.constant(lengths))
    found, start = [], 0
    while start < len(rows):
        end = int(pooled_batches.chunk_end(model, pool, tf.constant(rows), tf.constant(start)))
        found.append(lengths[rows[start:end]].tolist())
        start = end
    assert found == chunks


def test_rates_fall_in_a_line_and_stay_at_the_end():
    decay = LinearDecay(4, end=0.2)
    shares = [float(decay(tf.constant(number))) for number in range(6)]
    np.testing.assert_allclose(shares, [1.0, 0.8, 0.6, 0.4, 0.2, 0.2], rtol=1e-6)
    for options in ({"total_rounds": 0}, {"total_rounds": 3, "end": 1.5}):
        with pytest.raises(ValueError, match="LinearDecay: "):
            LinearDecay(**options)


@pytest.mark.parametrize("build", [build_sgdm, build_adam])
def test_a_scaled_optimizer_is_one_of_another_rate(build):
    weights = collections.OrderedDict(a=tf.constant([1.0, -2.0]))
    moved = []
    for optimizer in (
        ScheduledOptimizer(build(0.4), LinearDecay(4)).at_round(tf.constant(3)),
        build(0.1),
    ):
        state = optimizer.initialize({"a": tf.TensorSpec([2])})
        _, new = optimizer.next(state, weights, {"a": tf.constant([0.5, 0.25])})
        moved.append(new["a"])
    np.testing.assert_allclose(*moved, rtol=1e-6)
    assert np.abs(moved[0] - weights["a"]).min() > 0.01


def test_before_it_predicts_a_client_of_pfedrec_takes_the_step_of_a_round():
    method = methods()["pfedrec"]
    options = method.options(client_learning_rate=0.7, local_epochs=3)
    (phase,) = method.finetuning(options, Layers(head=("user_embedding",)))
    assert (phase.variables, phase.epochs) == ("global", 3)
    assert plain_sgd_rate(phase.optimizer) == 0.7

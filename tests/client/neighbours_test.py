"""Who predicts without neighbours, and which models have none.

What they make likely is in tests/federated/evaluation_reference_test.py, in plain NumPy.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.evaluation.evaluate import build_evaluation
from fedpersonal.methods.ditto import ditto
from fedpersonal.methods.phases import GradientPhase, NeighboursPhase
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.tff.optimizers import build_sgdm

SGD = build_sgdm(0.1)
PHASE = NeighboursPhase(("head",), 2, 0.6)
X = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
LOGITS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build_classifier():
    x = tf.keras.Input([3], name="x")
    hidden = tf.keras.layers.Dense(2, name="base")(x)
    return tf.keras.Model({"x": x}, tf.keras.layers.Dense(4, name="head")(hidden))


def build_twice():
    x = tf.keras.Input([3], name="x")
    head = tf.keras.layers.Dense(3, name="head")
    return tf.keras.Model({"x": x}, head(head(x)))


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.base, self.last = tf.keras.layers.Dense(2), tf.keras.layers.Dense(4, name="head")

    def call(self, inputs):
        return self.last(self.base(inputs["x"]))


def model_of(build=build_classifier, label_spec=tf.TensorSpec([None], tf.int32), **options):
    return PartitionedModel(build, loss=LOGITS, label_spec=label_spec, **options)


@pytest.fixture(name="clients")
def _clients(make_dataset):
    return make_dataset([({"x": own}, np.arange(5, dtype=np.int32) % 3) for own in X])


def evaluated(model, phases, clients, support=None, kept=None):
    evaluate = build_evaluation(
        model, phases, clients if support is None else support, clients,
        batch_size=2, with_kept=kept is not None,
    )  # fmt: skip
    results = evaluate(model.initial_global_values(seed=1), kept)
    return results.before["loss"], results.after["loss"]


@pytest.mark.exhaustive
def test_who_remembers_nothing_predicts_by_the_model(clients):
    before, after = evaluated(model_of(), (PHASE,), clients, clients.head(0))
    np.testing.assert_allclose(after, before, rtol=1e-6)
    before, after = evaluated(model_of(), (PHASE,), clients)
    assert (after[:, 0] < before[:, 0] - 0.1).all()


def test_neighbours_go_by_the_models_that_clients_have_kept(clients):
    model = ditto(client_optimizer=SGD).prepare(model_of())
    random = np.random.default_rng(2)
    shapes = {v.name: (2, *v.shape) for v in model.local_variables}
    own = {name: np.float32(random.normal(size=shape)) for name, shape in shapes.items()}
    kept = np.ones(2, bool), own
    _, alone = evaluated(model, (), clients, kept=kept)
    _, idle = evaluated(model, (NeighboursPhase(("head",), 2, 0.0),), clients, kept=kept)
    np.testing.assert_allclose(idle, alone, rtol=1e-5)
    # The nearest of examples that are asked again is each itself.
    before, itself = evaluated(model, (NeighboursPhase(("head",), 1, 1.0),), clients, kept=kept)
    assert itself[:, 0].max() < 1e-5 < alone[:, 0].min() and (before != alone).any()


def test_a_subclassed_model_has_neighbours_too(clients):
    model = model_of(Subclassed, input_spec={"x": tf.TensorSpec([None, 3])})
    _, itself = evaluated(model, (NeighboursPhase(("head",), 1, 1.0),), clients)
    assert itself[:, 0].max() < 1e-5


@pytest.mark.parametrize(
    ("model", "phases", "message"),
    [
        (
            {},
            (NeighboursPhase(("haed",)),),
            "phase 0: head: 'haed' names no variable of the model; did you mean 'head'",
        ),
        ({}, (PHASE, GradientPhase("all", "all", SGD)), "phase 0: a NeighboursPhase must be the l"),
        ({"build": build_twice}, (PHASE,), "inputs of 'head'; it must be a layer that"),
        (
            {"label_spec": tf.TensorSpec([None, 1], tf.int32)},
            (PHASE,),
            r"label_spec has the shape \(None, 1\), the output \(None, 4\)",
        ),
    ],
)
def test_where_there_are_no_neighbours(clients, make_dataset, model, phases, message):
    model = model_of(**model)
    if model.label_spec.shape.rank == 2:
        clients = make_dataset([({"x": own}, np.zeros([5, 1], np.int32)) for own in X])
    with pytest.raises(UserError, match=message):
        evaluated(model, phases, clients)


@pytest.mark.parametrize("wrong", [{"neighbours": 0}, {"weight": 1.5}, {"scale": 0.0}])
def test_fields_have_bounds(wrong):
    with pytest.raises(ValueError, match=f"NeighboursPhase: {[*wrong][0]} must be"):
        NeighboursPhase(("head",), **wrong)

"""Frozen variables: files that are mapped, and layers that neither cross the boundary nor move."""

from __future__ import annotations

import collections
import os

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.federated.boundary import check_boundary
from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.model.frozen import FrozenVariables
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.tff.optimizers import build_sgdm
from fedpersonal.training.trainer import Trainer

SGD = build_sgdm(0.2)
SERVER = build_sgdm(1.0)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_tensors_are_the_arrays(tmp_path):
    table = draw(6, 4)
    values = {
        "matrix": draw(3, 5),
        "one": np.array([2.5], np.float32),
        "number": np.float32(-1.5),
        "transposed": table.T,
        "every other": table[::2],
    }
    frozen = FrozenVariables.write(tmp_path / "new" / "folder", values)
    assert frozen.num_bytes == 4 * (15 + 1 + 1 + 24 + 12)
    assert frozen.shapes == {name: np.shape(value) for name, value in values.items()}

    @tff.tf_computation()
    def read():
        return collections.OrderedDict((name, frozen.tensor(name)) for name in values)

    for name, value in read().items():
        np.testing.assert_array_equal(value, values[name])
        np.testing.assert_array_equal(frozen.array(name), values[name])


def test_equal_values_share_a_file_that_is_written_once(tmp_path):
    one, other = draw(4, 3), draw(4, 3, seed=1)
    FrozenVariables.write(tmp_path, {"a": one, "b": other, "c": one.copy()})
    first, second = sorted(tmp_path.iterdir())
    os.utime(first, ns=(1, 1))
    second.write_bytes(second.read_bytes()[:-4])  # A damaged one is written again.
    # Another model, with a value that has the same numbers in another shape.
    again = FrozenVariables.write(tmp_path, {"d": other, "e": one.reshape(2, 6)})
    assert sorted(tmp_path.iterdir()) == [first, second] and first.stat().st_mtime_ns == 1
    np.testing.assert_array_equal(again.array("d"), other)
    np.testing.assert_array_equal(again.array("e"), one.reshape(2, 6))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(3), r"frozen 'a' must be float32 .* not float64 of shape \(3,\)"),
        (np.zeros([2, 0], np.float32), r"at least one number, not float32 of shape \(2, 0\)"),
    ],
)
def test_values_that_are_refused(tmp_path, value, message):
    with pytest.raises(ValueError, match=message):
        FrozenVariables.write(tmp_path, {"a": value})


def build_model():
    """A frozen layer, a client's own one and a shared one, each without a bias."""
    x = tf.keras.Input([3], name="x")
    hidden = x
    for name, units in (("base", 4), ("own", 2), ("shared", 1)):
        constant = tf.keras.initializers.Constant(draw(hidden.shape[-1], units, seed=units))
        layer = tf.keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer="zeros" if name == "base" else constant,
            trainable=name != "base",
            name=name,
        )
        hidden = layer(hidden)
    return tf.keras.Model({"x": x}, hidden)


BASE = draw(3, 4, seed=9)
OPTIONS = {"local_layers": ["own"], "frozen_layers": ["base"]}


@pytest.fixture(name="model")
def _model(tmp_path):
    frozen = FrozenVariables.write(tmp_path, {"base/kernel": BASE})
    return PartitionedModel(build_model, frozen=frozen, **OPTIONS)


def reconstruct_and_step(x, y, own, shared):
    """One step on the local variable with the first batch, one on the shared with the second."""
    (x0, x1), (y0, y1) = x, y
    error = (x0 @ BASE @ own @ shared)[:, 0] - y0
    own = own - 0.2 * 2 / len(y0) * (x0 @ BASE).T @ error[:, None] @ shared.T
    error = (x1 @ BASE @ own @ shared)[:, 0] - y1
    return shared - 0.2 * 2 / len(y1) * (x1 @ BASE @ own).T @ error[:, None]


def test_frozen_layers_neither_cross_nor_move(model, make_dataset):
    assert [v.name for v in model.variables] == ["own/kernel", "shared/kernel"]
    algorithm = fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD)
    x, y = draw(2, 3, 3, seed=4), draw(2, 3, seed=5)
    dataset = make_dataset([({"x": x.reshape(6, 3)}, y.reshape(6))])
    shared = draw(2, 1, seed=1)
    for _ in range(2):
        shared = reconstruct_and_step(x, y, draw(4, 2, seed=2), shared)
    for packing in ("stacked", "pooled"):
        execution = Execution(batch_size=3, packing=packing)
        process = build_process(model, algorithm, execution=execution, server_optimizer=SERVER)
        crossings = check_boundary(model, process.next)
        assert "shared/kernel" in {c.name.split(".")[-1] for c in crossings}
        assert not any("base" in c.name or c.shape == BASE.shape for c in crossings)
        state = process.initialize()
        for _ in range(2):
            cohort = make_cohort(model, dataset, [0], execution=execution)
            state = process.next(state, cohort.examples).state
        weights = dict(state.global_model_weights.trainable)
        assert list(weights) == ["shared/kernel"]
        np.testing.assert_allclose(weights["shared/kernel"], shared, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.frozen.array("base/kernel"), BASE)


@pytest.fixture(name="pretrained", scope="module")
def _pretrained():
    """A built model whose body normalises by what other data were like."""
    layers = tf.keras.layers
    body = tf.keras.Sequential(
        [layers.Dense(4, name="deep"), layers.BatchNormalization(name="bn"), layers.ReLU()],
        name="body",
    )
    x = tf.keras.Input([3], name="x")
    keras_model = tf.keras.Model(x, layers.Dense(1, name="head")(body(x)))
    keras_model.compile("sgd", "mse")
    keras_model.fit(draw(64, 3) * 3 + 1, draw(64, seed=1), epochs=1, verbose=0)
    return keras_model


@pytest.mark.exhaustive(but=("stacked",))
@pytest.mark.parametrize("packing", ["stacked", "pooled"])
def test_a_pretrained_body_stays_as_it_is_in_keras(pretrained, packing, make_dataset):
    """Its values are the built model's; a round of one client is a step of Keras' own fit."""
    model = PartitionedModel(pretrained, frozen_layers=["body"])
    assert [v.name for v in model.variables] == ["head/kernel", "head/bias"]
    x, y = draw(8, 3, seed=2), draw(8, seed=3)
    trainer = Trainer(
        model, fed_avg(client_optimizer=SGD), make_dataset([({"x": x}, y)]), packing=packing
    )
    with trainer.fit(rounds=1, progress=False) as trained:
        ours = trained.to_keras()
    expected = tf.keras.models.clone_model(pretrained)
    expected.set_weights(pretrained.get_weights())
    expected.get_layer("body").trainable = False
    expected.compile(tf.keras.optimizers.SGD(0.2), "mse")
    expected.fit(x, y, batch_size=8, verbose=0)
    before, found = pretrained.get_weights(), ours.get_weights()
    for own, value in zip(found, expected.get_weights()):
        np.testing.assert_allclose(own, value, 1e-5, 1e-6)
    assert np.abs(found[-1] - before[-1]).max() > 1e-2  # The head's bias.


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (None, {}, r"frozen variable 'base/kernel' of shape \(3, 4\) needs a value .*given: none"),
        ({"bas/kernel": BASE}, {}, r"'base/kernel' of shape \(3, 4\) needs .* given: none"),
        ({"base/kernel": BASE.T}, {}, r"needs a value of that shape; given: \(4, 3\)"),
        ({"base/kernel": BASE}, {"lookups": {"base": "x"}}, "lookups: 'base' names no variable"),
    ],
)
def test_models_that_are_refused(tmp_path, values, options, message):
    frozen = None if values is None else FrozenVariables.write(tmp_path, values)
    with pytest.raises(ValueError, match=message):
        PartitionedModel(build_model, frozen=frozen, **{**OPTIONS, **options})

"""The noisy mean of what clients keep: clipping and noise by NumPy, and that it is declared."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.federated.boundary import LocalVariableError, check_boundary
from fedpersonal.federated.noisy_mean import NoisyMean
from fedpersonal.model.partition import PartitionedModel

# Large enough for a standard deviation of its numbers; its twin has the same shape.
ONE, TWIN, BIAS = "one/kernel", "twin/kernel", "one/bias"
SHAPES = {ONE: (40, 25), BIAS: (25,), TWIN: (40, 25)}
LARGE = 1e9


def build_model():
    x = tf.keras.Input([40], name="x")
    near = tf.keras.initializers.RandomNormal(mean=1.0, stddev=0.1)
    one = tf.keras.layers.Dense(25, kernel_initializer=near, name="one")(x)
    twin = tf.keras.layers.Dense(25, kernel_initializer=near, use_bias=False, name="twin")(x)
    return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="head")(one * twin))


@pytest.fixture(name="model", scope="module")
def _model():
    return PartitionedModel(build_model, local_layers=["one", "twin"])


def start_of(model, seed=0):
    draw = tf.function(lambda: model.initial_values(model.local_variables, tf.constant([seed, -2])))
    return {name: value.numpy() for name, value in draw().items()}


@pytest.fixture(name="kept", scope="module")
def _kept(model):
    """Three clients, each several times as far from the start as the one before."""
    random = np.random.default_rng(4)
    far = np.array([0.01, 0.1, 1.0])
    return {
        name: value + (random.normal(size=(3, *value.shape)).T * far).T
        for name, value in start_of(model).items()
    }


def close(actual, desired):
    assert actual.keys() == desired.keys()
    for name, value in desired.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("clip_norm", [10.0, LARGE])
def test_all_variables_of_a_client_are_clipped_together(model, kept, clip_norm):
    start = start_of(model)
    moved = {name: value - start[name] for name, value in kept.items()}
    norms = np.sqrt(sum((value.reshape(3, -1) ** 2).sum(1) for value in moved.values()))
    assert norms[1] < 10.0 < norms[2]
    # One variable alone would be within the bound of the largest.
    scale = np.minimum(1, clip_norm / norms)
    expected = {name: start[name] + (value.T * scale).T.mean(0) for name, value in moved.items()}
    close(NoisyMean(model, clip_norm=clip_norm, noise_multiplier=0.0)(kept), expected)


def test_noise_has_its_scale_and_seed(model, kept):
    clip_norm, noise_multiplier = 2.0, 0.5

    def average(seed, multiplier=noise_multiplier):
        return NoisyMean(model, clip_norm=clip_norm, noise_multiplier=multiplier, seed=seed)(kept)

    one, same = average(5), average(5)
    close(one, same)
    deviation = clip_norm * noise_multiplier
    noises = []
    for seed, noisy in ((5, one), (6, average(6))):
        quiet = average(seed, 0.0)
        # Of the sum over three clients.
        noises.append({name: 3 * (noisy[name] - quiet[name]) / deviation for name in noisy})
    for noise in noises:
        drawn = np.concatenate([value.ravel() for value in noise.values()])
        assert drawn.std() == pytest.approx(1.0, abs=0.08)
        assert drawn.mean() == pytest.approx(0.0, abs=0.08)
    # Other variables and seeds have noise of their own.
    for one, other in ((noises[0][ONE], noises[0][TWIN]), (noises[0][ONE], noises[1][ONE])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.12


def test_its_crossing_is_listed_and_refused_undeclared(model):
    mean = NoisyMean(model, clip_norm=1.0, noise_multiplier=0.1)
    found = {c.name: (c.direction, c.shape) for c in mean.crossings}
    declared = {f"clipped.{name}": ("aggregate", shape) for name, shape in SHAPES.items()}
    assert found == {**declared, "count": ("aggregate", ())}
    for names in ((), ("clipped",), list(declared)[1:]):
        with pytest.raises(LocalVariableError, match=f"'{ONE}' is sent .aggregate, as 'clipped"):
            check_boundary(model, mean.computation, declared=names)
    assert check_boundary(model, mean.computation, declared=declared) == mean.crossings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip_norm": 0.0}, "clip_norm must be positive, not 0.0"),
        ({"clip_norm": float("nan")}, "clip_norm must be positive, not nan"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be at least 0, not -1.0"),
        ({"model": PartitionedModel(build_model)}, "the model has no local variables"),
    ],
)
def test_mistakes(model, options, said):
    with pytest.raises(ValueError, match=f"NoisyMean: {said}"):
        NoisyMean(**{"model": model, "clip_norm": 1.0, "noise_multiplier": 1.0, **options})

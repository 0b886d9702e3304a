"""Seeded draws of layers: how they are distributed, and what they depend on."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.model.noise import NoiseDraws, fold
from fedpersonal.model.partition import PartitionedModel

LAYERS = tf.keras.layers


def seeds_of(*numbers):
    return fold(tf.zeros([], tf.uint64), tf.constant(numbers))


def test_folding_is_splitmix64():
    """Its first numbers from the seed 1234567, as its authors' code prints them."""
    state = tf.constant(1234567, tf.uint64)
    found = [int(fold(state, i)) for i in range(3)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_distributions():
    shape = [1000, 100]
    draws = NoiseDraws(seeds_of(*range(1000)))
    uniform = draws.random_uniform(shape, 2.0, 6.0).numpy()
    assert uniform.min() > 2 and uniform.max() < 6
    assert uniform.mean() == pytest.approx(4, abs=0.02)
    assert np.histogram(uniform, 10)[0].std() < 400
    normal = draws.random_normal(shape, 1.0, 3.0).numpy()
    assert normal.mean() == pytest.approx(1, abs=0.04)
    assert normal.std() == pytest.approx(3, abs=0.04)
    truncated = draws.truncated_normal(shape).numpy()
    assert 1.99 < np.abs(truncated).max() <= 2.001
    assert truncated.std() == pytest.approx(0.88, abs=0.01)
    dropped = draws.dropout(tf.ones(shape), 0.25).numpy()
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (dropped == 0).mean() == pytest.approx(0.25, abs=0.01)
    # Neighbours, times and layers have nothing to do with each other.
    for one, other in ((uniform[:-1], uniform[1:]), (uniform[:, :-1], uniform[:, 1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(uniform.ravel(), normal.ravel())[0, 1]) < 0.01


def test_a_draw_is_its_examples_and_its_places_own():
    whole = NoiseDraws(seeds_of(5, 6, 7)).random_uniform([3, 4, 2]).numpy()
    part = NoiseDraws(seeds_of(7, 5)).random_uniform([2, 3, 2]).numpy()
    np.testing.assert_array_equal(part, whole[[2, 0], :3])
    # Times that are folded into the batch are their example's.
    folded = NoiseDraws(seeds_of(5, 6)).random_uniform([6, 4]).numpy()
    again = NoiseDraws(seeds_of(6)).random_uniform([3, 4]).numpy()
    np.testing.assert_array_equal(folded[3:], again)
    assert len(np.unique(folded)) == 24
    # One draw for the whole batch, and one for all at once.
    assert NoiseDraws(seeds_of(5, 6)).random_uniform([1, 4]).shape == (1, 4)
    assert NoiseDraws(seeds_of(5, 6)).random_uniform([]).shape == ()
    assert NoiseDraws(seeds_of()).random_uniform([0, 4]).shape == (0, 4)


def recurrent():
    x = tf.keras.Input([4, 2], name="x")
    hidden = LAYERS.LSTM(3, dropout=0.5, recurrent_dropout=0.5, return_sequences=True)(x)
    hidden = LAYERS.TimeDistributed(LAYERS.Dropout(0.5))(LAYERS.GaussianNoise(0.3)(hidden))
    hidden = LAYERS.GaussianDropout(0.3)(LAYERS.AlphaDropout(0.2)(hidden))
    hidden = LAYERS.Flatten()(LAYERS.SpatialDropout1D(0.3)(hidden))
    return tf.keras.Model({"x": x}, LAYERS.Dense(1)(hidden))


def augmented():
    x = tf.keras.Input([6, 6, 2], name="x")
    images = LAYERS.RandomTranslation(0.4, 0.4)(LAYERS.RandomFlip()(x))
    images = LAYERS.RandomZoom(0.4)(LAYERS.RandomRotation(0.4)(images))
    images = LAYERS.RandomBrightness(0.4, (0, 1))(LAYERS.RandomContrast(0.4)(images))
    return tf.keras.Model({"x": x}, LAYERS.Dense(1)(LAYERS.Flatten()(images)))


@pytest.mark.exhaustive(but=("recurrent",))
@pytest.mark.parametrize("build", [recurrent, augmented])
def test_layers_draw_by_examples_seeds(build):
    model = PartitionedModel(build)
    assert model.draws_noise and not PartitionedModel(plain).draws_noise
    shape = [3, *model.input_spec["x"].shape[1:]]
    x = tf.constant(np.random.default_rng(0).uniform(size=shape), tf.float32)

    @tf.function(autograph=False)
    def output(x, noise, training):
        values = model.initial_values(model.variables, tf.constant([0, 0]))
        return model.predict(values, {"x": x}, training=training, noise=noise)[0]

    seeds = seeds_of(1, 2, 3)
    first = output(x, seeds, True).numpy()
    np.testing.assert_array_equal(output(x, seeds, True), first)
    assert (output(x, seeds_of(4, 5, 6), True).numpy() != first).all()
    alone = [output(x[i : i + 1], seeds[i : i + 1], True)[0] for i in (2, 0, 1)]
    np.testing.assert_allclose(alone, first[[2, 0, 1]], rtol=1e-4, atol=1e-6)
    # Equal examples have noise of their own; prediction has none.
    same = tf.repeat(x[:1], 3, axis=0)
    assert len(np.unique(output(same, seeds, True))) == 3
    assert len(np.unique(np.round(output(same, seeds, False), 5))) == 1


@pytest.mark.parametrize("mode", ["horizontal", "vertical"])
def test_a_flip_turns_half_of_the_images(mode):
    layer, images = LAYERS.RandomFlip(mode), np.random.default_rng(0).normal(size=[400, 4, 4, 1])
    NoiseDraws(seeds_of(*range(400))).give_to(tf.keras.Sequential([layer]))
    found = layer(tf.constant(images, tf.float32), training=True).numpy()
    turned = images[:, :, ::-1] if mode == "horizontal" else images[:, ::-1]
    is_turned = np.isclose(found, turned).all((1, 2, 3))
    assert (is_turned | np.isclose(found, images).all((1, 2, 3))).all()
    assert is_turned.mean() == pytest.approx(0.5, abs=0.08)


def test_contrast_is_tensorflows_of_each_images_factor():
    layer, images = (
        LAYERS.RandomContrast((0.5, 0.9)),
        np.random.default_rng(0).uniform(1, 9, [9, 4, 4, 2]),
    )
    images = tf.constant(images, tf.float32)
    NoiseDraws(seeds_of(*range(9))).give_to(tf.keras.Sequential([layer]))
    factors = NoiseDraws(seeds_of(*range(9))).random_uniform([9, 1, 1, 1], 0.5, 1.9)
    expected = [tf.image.adjust_contrast(i, f) for i, f in zip(images, tf.reshape(factors, [-1]))]
    found = layer(images, training=True)
    np.testing.assert_allclose(found, np.clip(expected, 0, 255), rtol=1e-5, atol=1e-5)
    assert len(np.unique(factors)) == 9


def plain():
    """A layer that could drop something out, but does not."""
    x = tf.keras.Input([4, 2], name="x")
    return tf.keras.Model({"x": x}, LAYERS.Dense(1)(LAYERS.LSTM(3)(x)))

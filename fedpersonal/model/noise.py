"""Random numbers of layers such as Dropout, as a function of a seed.

A random number is a hash of its example's seed, of the number of the layer's call, and of its place
in the example. It does not depend on the other examples of a batch, on their padding, or on whether
a run was resumed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Union

import tensorflow as tf

from fedpersonal.model.keras import keras, list_layers, replace_generators

Shape = Union[Sequence[Union[int, tf.Tensor]], tf.TensorShape, tf.Tensor]


def fold(state: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
    """Mixes integers into hash states.

    The step and the mixing function of SplitMix64 (Steele et al., "Fast splittable pseudorandom
    number generators", 2014). Plain arithmetic is vectorised; TensorFlow's random operations are
    not.

    Args:
        state: uint64, any shape.
        number: Any integers, of a shape that broadcasts against it.

    Returns:
        uint64 of the broadcast shape.
    """
    step = tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    x = state + (tf.cast(number, tf.uint64) + 1) * step
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = _xor_shifted(x, shift) * tf.constant(factor, tf.uint64)
    return _xor_shifted(x, 31)


def _xor_shifted(x: tf.Tensor, shift: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64))
    return tf.bitwise.bitwise_xor(x, shifted)


class NoiseDraws:
    """Replaces the random generator of a model's Keras layers, for one call of the model.

    A layer within a loop over time, such as a cell's Dropout, samples once for all times.

    Attributes:
        count: Number of samples that the layers have requested.
    """

    def __init__(self, seeds: tf.Tensor):
        """Takes the seeds of the batch's examples, uint64 (batch,)."""
        self._seeds = seeds
        self.count = 0

    def give_to(self, model: keras.Model) -> None:
        """Makes all layers of a model use this generator."""
        replace_generators(model, self)
        for layer in list_layers(model):
            for kind, augment in _AUGMENTATIONS.items():
                if isinstance(layer, kind):
                    layer.call = functools.partial(augment, layer, self)

    def _maybe_init(self) -> None:
        """Does nothing; Keras calls it when a layer is built."""

    # These signatures are Keras'.
    def random_uniform(self, shape, minval=0.0, maxval=None, dtype=tf.float32, nonce=None):
        """Samples from [minval, maxval); the first axis is the batch, or times of the batch."""
        del nonce
        unit = tf.cast(self._open_unit(shape), dtype)
        return minval + unit * ((1.0 if maxval is None else maxval) - minval)

    def random_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, nonce=None):
        """Samples from a normal distribution."""
        del nonce
        return mean + stddev * tf.cast(tf.math.ndtri(self._open_unit(shape)), dtype)

    def truncated_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, nonce=None):
        """Samples from a normal distribution up to two standard deviations from its mean."""
        del nonce
        outside = 0.02275013  # The share of a normal distribution below -2.
        unit = outside + (1.0 - 2.0 * outside) * self._open_unit(shape)
        return mean + stddev * tf.cast(tf.math.ndtri(unit), dtype)

    def dropout(self, inputs, rate, noise_shape=None):
        """Sets a share of the inputs to 0 and scales the others up."""
        return tf.nn.experimental.general_dropout(inputs, rate, self.random_uniform, noise_shape)

    def make_seed_for_stateless_op(self) -> tf.Tensor:
        """Returns an int32 seed of shape (2,) for TensorFlow's stateless random operations."""
        self.count += 1
        return tf.bitcast(fold(self._seeds[0], self.count), tf.int32)

    def make_legacy_seed(self) -> None:
        """Returns no seed: layers call `make_seed_for_stateless_op`, too."""

    def _open_unit(self, shape: Shape) -> tf.Tensor:
        """Samples float32 from (0, 1)."""
        bits = tf.bitwise.right_shift(self._bits(shape), tf.constant(41, tf.uint64))
        return (tf.cast(bits, tf.float32) + 0.5) * 2.0**-23

    def _bits(self, shape: Shape) -> tf.Tensor:
        self.count += 1
        seeds = fold(self._seeds, self.count)
        shape = tf.convert_to_tensor(shape, tf.int32)
        if shape.shape[0] == 0:
            return seeds[0]
        # An example may have several rows, such as where its times are folded into the batch.
        num_examples = tf.maximum(tf.size(seeds), 1)
        rows = tf.range(shape[0])
        rows_each = tf.maximum(shape[0] // num_examples, 1)
        examples = tf.minimum(rows // rows_each, num_examples - 1)
        bits = fold(tf.gather(seeds, examples), rows % rows_each)
        for axis in range(1, shape.shape[0]):
            bits = fold(bits[..., tf.newaxis], tf.range(shape[axis]))
        return bits


# Keras' layers use one seed for all images of a batch, so that results would depend on the batch.
@tf.autograph.experimental.do_not_convert
def _flip(layer, draws: NoiseDraws, inputs: tf.Tensor, training: bool = True) -> tf.Tensor:
    images = tf.cast(inputs, layer.compute_dtype)
    axes = [axis for axis, is_on in ((-2, layer.horizontal), (-3, layer.vertical)) if is_on]
    for axis in axes if training else ():
        is_flipped = draws.random_uniform([tf.shape(images)[0], 1, 1, 1]) < 0.5
        images = tf.where(is_flipped, tf.reverse(images, [axis]), images)
    return images


@tf.autograph.experimental.do_not_convert
def _change_contrast(
    layer, draws: NoiseDraws, inputs: tf.Tensor, training: bool = True
) -> tf.Tensor:
    images = tf.cast(inputs, layer.compute_dtype)
    if not training:
        return images
    shape = [tf.shape(images)[0], 1, 1, 1]
    factor = draws.random_uniform(shape, 1.0 - layer.lower, 1.0 + layer.upper)
    mean = tf.reduce_mean(images, [-3, -2], keepdims=True)
    return tf.clip_by_value((images - mean) * factor + mean, 0, 255)


_AUGMENTATIONS = {
    keras.layers.RandomFlip: _flip,
    keras.layers.RandomContrast: _change_contrast,
}

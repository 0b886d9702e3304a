"""What a client predicts by the examples of its own that are nearest, beside the model.

A client remembers what the head is called with, of each example or place of a sequence, and the
label. Both are values of its own, as variables are, and its model then says what they make likely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from fedpersonal.client.batches import apply_to_batch, take_batch
from fedpersonal.client.values import ClientValues, Examples, join_axes, phase_mask
from fedpersonal.errors import UserError
from fedpersonal.methods.phases import NeighboursPhase, Phase
from fedpersonal.model.classes import as_output, check_classes, log_likely, log_of
from fedpersonal.model.keras import keras, record_inputs
from fedpersonal.model.names import MEMORY
from fedpersonal.model.partition import PartitionedModel

_INPUTS, _LABELS, _REAL = (f"{MEMORY}/{part}" for part in ("inputs", "labels", "real"))
# Farther than any example, and still a number.
_FAR = 1e30


def remember(
    model: PartitionedModel, phase: NeighboursPhase, values: ClientValues, examples: Examples
) -> ClientValues:
    """Returns values with what clients remember of their examples, (C, n, ...)."""
    shape = tf.shape(examples.mask)

    def in_one_batch(tensor: tf.Tensor) -> tf.Tensor:
        """(C, N, B, ...) to (C, 1, N * B, ...)."""
        outer = [shape[0], 1, shape[1] * shape[2]]
        return tf.reshape(tensor, tf.concat([outer, tf.shape(tensor)[3:]], 0))

    whole = Examples(
        features={name: in_one_batch(v) for name, v in examples.features.items()},
        labels=in_one_batch(examples.labels),
        mask=in_one_batch(phase_mask(phase.data, examples)),
        rows=examples.rows,
        positions={k: in_one_batch(v) for k, v in examples.positions.items() if k in values.own},
    )
    batch = take_batch(model, whole, tf.zeros(shape[:1], tf.int32), values)
    view = _HeadInputs(model.personal, phase)
    inputs, _, _ = apply_to_batch(view, values, batch, training=False)
    real = batch.mask
    if view.places:
        real = tf.repeat(real[..., tf.newaxis], tf.shape(batch.labels)[2], axis=2)
        if model.sequence_length is not None:
            flat = {name: join_axes(v, 2) for name, v in batch.features.items()}
            lengths = model.sequence_length(flat, join_axes(batch.labels, 2))
            is_real = tf.sequence_mask(lengths, tf.shape(batch.labels)[2])
            real = tf.where(tf.reshape(is_real, tf.shape(real)), real, 0.0)

    def padded(tensor: tf.Tensor, tail: Sequence[int | None]) -> tf.Tensor:
        """Makes one axis of examples and places, with room for all neighbours."""
        tensor = tf.reshape(tensor, [shape[0], -1, *tail])
        tensor = tf.pad(tensor, [[0, 0], [0, phase.neighbours], *([0, 0] for _ in tail)])
        return tf.ensure_shape(tensor, [examples.mask.shape[0], None, *tail])

    # What padding is called with may be anything, even NaN.
    inputs = tf.where(real[..., tf.newaxis] > 0, inputs, 0.0)
    memory = {
        _INPUTS: padded(inputs, [inputs.shape[-1]]),
        _LABELS: padded(tf.cast(batch.labels, tf.int32), []),
        _REAL: padded(real, []),
    }
    return values._replace(own={**values.own, **memory})


def remembers(values: Mapping[str, Any]) -> bool:
    """Tells whether a client's values have what it remembers among them."""
    return _INPUTS in values


def predicting(model: PartitionedModel, phases: Sequence[Phase]) -> PartitionedModel:
    """Returns a model as a client predicts with it after phases."""
    last = phases[-1] if phases else None
    if isinstance(last, NeighboursPhase):
        return _NeighboursModel(model.personal, last)
    return model.personal


class _NeighboursModel(PartitionedModel):
    """A model that says what it makes likely together with what its client remembers.

    Attributes:
        places: How many axes labels have beside that of examples: 1 for sequences.
    """

    def __init__(self, model: PartitionedModel, phase: NeighboursPhase):
        if model.mixes:
            raise UserError("neighbours are for one model; this one's clients mix several.")
        self.__dict__.update(vars(model))
        self._whole, self._phase = model, phase
        self._seen: list[Any] = []
        self.places = model.label_spec.shape.rank - 1

    @property
    def base(self) -> PartitionedModel:
        """As of `PartitionedModel`."""
        return self._whole.base

    def applied(self, values: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """As of `PartitionedModel`."""
        return self._whole.applied(values)

    def build(self) -> keras.Model:
        """Returns a new Keras model whose head writes down what it is called with."""
        built = self._whole.build()
        self._seen = record_inputs(built, self._phase.head[0].rpartition("/")[2])
        return built

    def predict(
        self, values: Mapping[str, tf.Tensor], features: Mapping[str, tf.Tensor], **options: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """As of `PartitionedModel`; without a memory among the values, what the model says."""
        output, added = super().predict(values, features, **options)
        return (self._mixed(values, output) if remembers(values) else output), added

    def _inputs(self, output: tf.Tensor) -> tf.Tensor:
        """Returns what the head has been called with for an output, (batch, ..., size)."""
        rank, size = self.places + 1, None
        if len(self._seen) == 1 and tf.is_tensor(self._seen[0]):
            size = self._seen[0].shape[rank:].num_elements()
        if size is None:
            raise UserError(
                f"neighbours are looked for among what {self._phase.head[0]!r} is called with; it "
                "must be a layer that the model calls once, with one tensor of a known size."
            )
        check_classes(output, self.label_spec, "neighbours")
        (inputs,) = self._seen
        return tf.reshape(inputs, tf.concat([tf.shape(inputs)[:rank], [size]], 0))

    def _mixed(self, values: Mapping[str, tf.Tensor], output: tf.Tensor) -> tf.Tensor:
        """Returns the output that neighbours have a part in: logits, unless the model's are not."""
        phase, inputs = self._phase, self._inputs(output)
        says = tf.exp(log_likely(output))
        asked, known = tf.reshape(inputs, [-1, inputs.shape[-1]]), values[_INPUTS]
        of_asked, of_known = (tf.reduce_sum(tf.square(t), 1) for t in (asked, known))
        apart = of_asked[:, tf.newaxis] + of_known - 2.0 * tf.matmul(asked, known, transpose_b=True)
        apart = tf.maximum(apart, 0.0) / (phase.scale * inputs.shape[-1])
        apart = tf.where(values[_REAL] > 0, apart, _FAR)
        places = _find_least(apart, phase.neighbours)
        is_real = tf.gather(values[_REAL], places) > 0
        closeness = -tf.gather(apart, places, batch_dims=1)
        shares = tf.where(is_real, tf.nn.softmax(closeness), 0.0)
        # Of each row of `says`, a segment a class.
        rows = tf.range(tf.shape(says)[0])[:, tf.newaxis] * says.shape[1]
        segments = rows + tf.gather(values[_LABELS], places)
        votes = tf.math.unsorted_segment_sum(
            tf.reshape(shares, [-1]), tf.reshape(segments, [-1]), tf.size(says)
        )
        weight = phase.weight * tf.reduce_max(values[_REAL])
        mixed = weight * tf.reshape(votes, tf.shape(says)) + (1.0 - weight) * says
        return as_output(log_of(mixed), output)


def _find_least(numbers: tf.Tensor, count: int) -> tf.Tensor:
    """Returns where the least numbers of each row are, the least first, int32 (rows, count).

    One after the other: `tf.vectorized_map` knows no `tf.math.top_k`.
    """
    columns, order = tf.range(tf.shape(numbers)[1]), tf.range(count)

    def find(number: tf.Tensor, left: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, ...]:
        place = tf.argmin(left, 1, tf.int32)[:, tf.newaxis]
        left = tf.where(tf.equal(columns, place), math.inf, left)
        return number + 1, left, tf.where(tf.equal(order, number), place, places)

    places = tf.zeros([tf.shape(numbers)[0], count], tf.int32)
    start = (0, numbers, places)
    return tf.while_loop(lambda number, *_: number < count, find, start)[2]


class _HeadInputs(_NeighboursModel):
    """A model that ends where its head begins."""

    def as_labels(self, predictions: tf.Tensor) -> tf.Tensor:
        """Leaves what the head is called with as it is."""
        return predictions

    def predict(
        self, values: Mapping[str, tf.Tensor], features: Mapping[str, tf.Tensor], **options: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns what the head is called with, (batch, ..., size)."""
        output, _ = PartitionedModel.predict(self, values, features, **options)
        return self._inputs(output), []

"""Predictions that mix the model's with the labels of a client's nearest examples.

A client remembers the head's inputs and the label of each example, or of each place of a sequence.
This memory is among the client's values, as variables are. Predictions search it for neighbours.
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
from fedpersonal.model.classes import as_output, check_classes, log_probabilities, safe_log
from fedpersonal.model.keras import keras, record_inputs
from fedpersonal.model.names import MEMORY
from fedpersonal.model.partition import PartitionedModel

_INPUTS, _LABELS, _REAL = (f"{MEMORY}/{part}" for part in ("inputs", "labels", "real"))
# A distance beyond that of any example, but finite.
_FAR = 1e30


def store_memory(
    model: PartitionedModel, phase: NeighboursPhase, values: ClientValues, examples: Examples
) -> ClientValues:
    """Returns values with clients' memories of their examples, (C, n, ...)."""
    shape = tf.shape(examples.mask)

    def in_one_batch(tensor: tf.Tensor) -> tf.Tensor:
        """Joins batches: (C, N, B, ...) to (C, 1, N * B, ...)."""
        outer = [shape[0], 1, shape[1] * shape[2]]
        return tf.reshape(tensor, tf.concat([outer, tf.shape(tensor)[3:]], 0))

    whole = Examples(
        features={name: in_one_batch(v) for name, v in examples.features.items()},
        labels=in_one_batch(examples.labels),
        mask=in_one_batch(phase_mask(phase.data, examples)),
        rows=examples.rows,
        positions={
            k: in_one_batch(v) for k, v in examples.positions.items() if k in values.per_client
        },
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
        """Joins the axes of examples and places, and pads for the number of neighbours."""
        tensor = tf.reshape(tensor, [shape[0], -1, *tail])
        tensor = tf.pad(tensor, [[0, 0], [0, phase.neighbours], *([0, 0] for _ in tail)])
        return tf.ensure_shape(tensor, [examples.mask.shape[0], None, *tail])

    # The head's inputs for padding may be anything, even NaN.
    inputs = tf.where(real[..., tf.newaxis] > 0, inputs, 0.0)
    memory = {
        _INPUTS: padded(inputs, [inputs.shape[-1]]),
        _LABELS: padded(tf.cast(batch.labels, tf.int32), []),
        _REAL: padded(real, []),
    }
    return values._replace(per_client={**values.per_client, **memory})


def has_memory(values: Mapping[str, Any]) -> bool:
    """Returns whether a client's values include a memory."""
    return _INPUTS in values


def make_predictor(model: PartitionedModel, phases: Sequence[Phase]) -> PartitionedModel:
    """Returns the model with which a client predicts after phases."""
    last = phases[-1] if phases else None
    if isinstance(last, NeighboursPhase):
        return _NeighboursModel(model.personal, last)
    return model.personal


class _NeighboursModel(PartitionedModel):
    """A model whose predictions are mixed with those of its client's memory.

    Attributes:
        places: The number of axes of labels after that of examples: 1 for sequences.
    """

    def __init__(self, model: PartitionedModel, phase: NeighboursPhase):
        if model.mixes:
            raise UserError("neighbours need a single model; this model's clients mix several.")
        self.__dict__.update(vars(model))
        self._whole, self._phase = model, phase
        self._head_inputs: list[Any] = []
        self.places = model.label_spec.shape.rank - 1

    @property
    def base(self) -> PartitionedModel:
        """As of `PartitionedModel`."""
        return self._whole.base

    def as_keras_values(self, values: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """As of `PartitionedModel`."""
        return self._whole.as_keras_values(values)

    def build(self) -> keras.Model:
        """Returns a new Keras model whose head records its inputs."""
        built = self._whole.build()
        self._head_inputs = record_inputs(built, self._phase.head[0].rpartition("/")[2])
        return built

    def predict(
        self, values: Mapping[str, tf.Tensor], features: Mapping[str, tf.Tensor], **options: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Predicts as `PartitionedModel` does; mixes in a memory if it is among the values."""
        output, added = super().predict(values, features, **options)
        return (self._mixed(values, output) if has_memory(values) else output), added

    def _inputs(self, output: tf.Tensor) -> tf.Tensor:
        """Returns the head's inputs for an output, (batch, ..., size)."""
        rank, size = self.places + 1, None
        if len(self._head_inputs) == 1 and tf.is_tensor(self._head_inputs[0]):
            size = self._head_inputs[0].shape[rank:].num_elements()
        if size is None:
            raise UserError(
                f"neighbours are searched among the inputs of {self._phase.head[0]!r}; it must be "
                "a layer that the model calls once, with one tensor of static size."
            )
        check_classes(output, self.label_spec, "neighbours")
        (inputs,) = self._head_inputs
        return tf.reshape(inputs, tf.concat([tf.shape(inputs)[:rank], [size]], 0))

    def _mixed(self, values: Mapping[str, tf.Tensor], output: tf.Tensor) -> tf.Tensor:
        """Mixes the output with the neighbours' labels; returns logits if the model does."""
        phase, inputs = self._phase, self._inputs(output)
        model_shares = tf.exp(log_probabilities(output))
        queries, memory = tf.reshape(inputs, [-1, inputs.shape[-1]]), values[_INPUTS]
        norms, memory_norms = (tf.reduce_sum(tf.square(t), 1) for t in (queries, memory))
        products = tf.matmul(queries, memory, transpose_b=True)
        distances = norms[:, tf.newaxis] + memory_norms - 2.0 * products
        distances = tf.maximum(distances, 0.0) / (phase.scale * inputs.shape[-1])
        distances = tf.where(values[_REAL] > 0, distances, _FAR)
        places = _find_least(distances, phase.neighbours)
        is_real = tf.gather(values[_REAL], places) > 0
        closeness = -tf.gather(distances, places, batch_dims=1)
        shares = tf.where(is_real, tf.nn.softmax(closeness), 0.0)
        # Each row of `model_shares` has a segment for each class.
        rows = tf.range(tf.shape(model_shares)[0])[:, tf.newaxis] * model_shares.shape[1]
        segments = rows + tf.gather(values[_LABELS], places)
        votes = tf.math.unsorted_segment_sum(
            tf.reshape(shares, [-1]), tf.reshape(segments, [-1]), tf.size(model_shares)
        )
        weight = phase.weight * tf.reduce_max(values[_REAL])
        mixed = weight * tf.reshape(votes, tf.shape(model_shares)) + (1.0 - weight) * model_shares
        return as_output(safe_log(mixed), output)


def _find_least(numbers: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the columns of each row's least numbers, the least first, int32 (rows, count).

    It searches one after another, since `tf.vectorized_map` does not support `tf.math.top_k`.
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
    """A model whose output is its head's inputs."""

    def as_labels(self, predictions: tf.Tensor) -> tf.Tensor:
        """Returns the head's inputs unchanged."""
        return predictions

    def predict(
        self, values: Mapping[str, tf.Tensor], features: Mapping[str, tf.Tensor], **options: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the head's inputs, (batch, ..., size)."""
        output, _ = PartitionedModel.predict(self, values, features, **options)
        return self._inputs(output), []

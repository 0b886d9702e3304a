"""One client's examples as a `tf.data.Dataset` of batches, for per-client execution."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.client.values import Examples
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.model.checks import check_data
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.packing import by_name, local_positions

# Batches that one client's dataset may have; padding reserves room for as many.
_MAX_BATCHES = 1 << 17


def dataset_type(model: PartitionedModel) -> tff.SequenceType:
    """Returns the TFF type of one client's batches: `OrderedDict(x=features, y=labels)` each."""
    element = collections.OrderedDict(
        x=by_name(
            {k: (s.dtype.as_numpy_dtype, list(s.shape)) for k, s in model.input_spec.items()}
        ),
        y=(model.label_spec.dtype.as_numpy_dtype, list(model.label_spec.shape)),
    )
    return tff.SequenceType(tff.to_type(element))


def client_datasets(
    model: PartitionedModel,
    dataset: ClientDataset,
    client_indices: Sequence[int] | np.ndarray,
    *,
    batch_size: int,
) -> list[tf.data.Dataset]:
    """Returns a cohort for per-client execution: a dataset of batches for each client."""
    dataset = check_data(model, dataset)

    def client(index: int) -> tf.data.Dataset:
        features, labels = dataset.client(index)
        columns = collections.OrderedDict(
            x=by_name({k: tf.cast(features[k], s.dtype) for k, s in model.input_spec.items()}),
            y=tf.cast(labels, model.label_spec.dtype),
        )
        return tf.data.Dataset.from_tensor_slices(columns).batch(batch_size)

    return [client(int(index)) for index in client_indices]


def examples_from_dataset(model: PartitionedModel, dataset: tf.data.Dataset) -> Examples:
    """Turns one client's batches, of any sizes, into `Examples`, inside a TFF computation."""

    def with_mask(batch):
        return batch, tf.ones(tf.shape(batch["y"])[:1])

    def nothing(spec):
        return tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)

    # An empty batch at the end stands for a client without any; padding makes all batches alike.
    empty = tf.data.Dataset.from_tensors(tf.nest.map_structure(nothing, dataset.element_spec))
    batches, mask = (
        dataset.concatenate(empty).map(with_mask).padded_batch(_MAX_BATCHES).get_single_element()
    )
    # What a model makes of zeros may be no number: padding repeats the batch's first example.
    slots = tf.where(mask > 0, tf.range(tf.shape(mask)[1]), 0)
    features = {k: tf.gather(v, slots, batch_dims=1)[tf.newaxis] for k, v in batches["x"].items()}
    mask = mask[tf.newaxis]
    rows, positions = {}, local_positions(model, features)
    for name, feature in model.base.global_tables.items():
        ids = features[feature]
        unique, index = tf.unique(tf.reshape(ids, [-1]))
        rows[name] = tf.cast(unique, tf.int32)[tf.newaxis]
        positions[name] = tf.reshape(index, tf.shape(ids))
    examples = Examples(features, batches["y"][tf.newaxis], mask, rows, positions)
    return tf.nest.map_structure(lambda t: tf.ensure_shape(t, [1, *t.shape[1:]]), examples)

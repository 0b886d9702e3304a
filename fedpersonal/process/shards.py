"""How clients' examples reach the client work: one client a CLIENTS member, or a packed cohort.

One a member is the reference: a `tf.data.Dataset` of batches, turned into `Examples` where it is
used. A packed cohort is a few members that each stack many clients, as padded arrays.
"""

from __future__ import annotations

import collections
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.client.values import Examples
from fedpersonal.data.batching import pad_batches
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.parts import is_in_part
from fedpersonal.data.touched_rows import touched_rows
from fedpersonal.model.checks import check_data
from fedpersonal.model.partition import PartitionedModel

# Batches that one client's dataset may have; padding reserves room for as many.
_MAX_BATCHES = 1 << 17


def default_num_members() -> int:
    """Members that a packed cohort is divided into: one a processor."""
    return os.cpu_count() or 1


def packed_type(
    model: PartitionedModel, *, clients: int, batch_size: int
) -> tff.StructWithPythonType:
    """Returns the TFF type of `Examples` of a member, for any number of batches and rows.

    Args:
        model: The partitioned model.
        clients: Clients a member, C; fixed, because TensorFlow is much faster with known shapes.
        batch_size: Examples a batch, B.
    """
    tables = model.global_tables
    shape = [clients, None, batch_size]

    def batched(spec: tf.TensorSpec) -> tff.TensorType:
        return tff.TensorType(spec.dtype.as_numpy_dtype, [*shape, *spec.shape[1:]])

    positions = {
        name: tff.TensorType(np.int32, [*shape, *model.input_spec[feature].shape[1:]])
        for name, feature in tables.items()
    }
    return tff.to_type(
        collections.OrderedDict(
            features=_ordered({k: batched(s) for k, s in model.input_spec.items()}),
            labels=batched(model.label_spec),
            mask=tff.TensorType(np.float32, shape),
            rows=_ordered({name: tff.TensorType(np.int32, [clients, None]) for name in tables}),
            positions=_ordered(positions),
        )
    )


def pack_cohort(
    model: PartitionedModel,
    dataset: ClientDataset,
    client_indices: Sequence[int],
    *,
    clients: int,
    batch_size: int,
    touched_data: str = "all",
) -> list[collections.OrderedDict]:
    """Divides a cohort into members of many clients each, of about equal work.

    Args:
        model: The partitioned model; `dataset` has its inputs among its features.
        dataset: All clients' examples.
        client_indices: The cohort, as indices into `dataset`.
        clients: Clients a member; the last ones are filled up with clients without examples.
        batch_size: Examples a batch.
        touched_data: Part of the data whose lookups need rows of their own:
            `Algorithm.touched_data` for training, `none` where no table moves.

    Returns:
        For each member a structure of arrays of `packed_type`.
    """
    client_indices = np.asarray(client_indices)
    return [
        pack_clients(
            model,
            dataset,
            client_indices[places],
            clients=clients,
            batch_size=batch_size,
            touched_data=touched_data,
        )
        for places in deal_clients(dataset.counts[client_indices], clients=clients)
    ]


def deal_clients(counts: np.ndarray, *, clients: int) -> list[np.ndarray]:
    """Deals a cohort out by size, so that the members take about equally long.

    Args:
        counts: (cohort,) examples of each client.
        clients: The most clients a member.

    Returns:
        For each member the places of its clients in the cohort.
    """
    by_size = np.argsort(-counts, kind="stable")
    num_members = max(1, math.ceil(len(by_size) / clients))
    return [by_size[member::num_members] for member in range(num_members)]


def pack_clients(
    model: PartitionedModel,
    dataset: ClientDataset,
    client_indices: Sequence[int],
    *,
    clients: int,
    batch_size: int,
    touched_data: str = "all",
) -> collections.OrderedDict:
    """Returns the padded arrays, of `packed_type`, of at most `clients` clients."""
    (packed,) = pack_parts(
        model,
        (dataset,),
        client_indices,
        clients=clients,
        batch_sizes=(batch_size,),
        touched_data=touched_data,
    )
    return packed


def pack_parts(
    model: PartitionedModel,
    parts: Sequence[ClientDataset],
    client_indices: Sequence[int],
    *,
    clients: int,
    batch_sizes: Sequence[int],
    touched_data: str,
) -> list[collections.OrderedDict]:
    """Packs several data sets of the same clients, whose touched rows are those of all parts."""
    parts = [check_data(model, part) for part in parts]
    arrays = [
        _padded_arrays(model, part, client_indices, clients=clients, batch_size=batch_size)
        for part, batch_size in zip(parts, batch_sizes)
    ]
    touched = {
        feature: _touched(
            [features[feature] for features, _, _ in arrays],
            [_part_mask(mask, touched_data) for _, _, mask in arrays],
        )
        for feature in set(model.global_tables.values())
    }
    tables = model.global_tables.items()
    return [
        collections.OrderedDict(
            features=_ordered(features),
            labels=labels,
            mask=mask,
            rows=_ordered({name: touched[feature][0] for name, feature in tables}),
            positions=_ordered({name: touched[feature][1][part] for name, feature in tables}),
        )
        for part, (features, labels, mask) in enumerate(arrays)
    ]


def _padded_arrays(
    model: PartitionedModel,
    dataset: ClientDataset,
    client_indices: Sequence[int],
    *,
    clients: int,
    batch_size: int,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns features, labels and mask of `clients` clients, each (C, N, B, ...)."""
    batches = pad_batches(dataset, client_indices, batch_size=batch_size)
    mask = _fill_up(batches.mask, clients)
    # What a model makes of zeros may be no number: padding repeats the batch's first example.
    slots = np.where(mask > 0, np.arange(batch_size), 0)
    features = {}
    for name, spec in model.input_spec.items():
        column = batches.features[name].astype(spec.dtype.as_numpy_dtype, copy=False)
        column = _fill_up(column, clients)
        index = slots.reshape(slots.shape + (1,) * (column.ndim - 3))
        features[name] = np.take_along_axis(column, index, axis=2)
    labels = batches.labels.astype(model.label_spec.dtype.as_numpy_dtype, copy=False)
    return features, _fill_up(labels, clients), mask


def _part_mask(mask: np.ndarray, part: str) -> np.ndarray:
    """Returns a mask (C, N, B) without the batches that are not in a part, or in `none`."""
    if part == "none":
        return np.zeros_like(mask)
    num_batches = mask.any(-1).sum(-1)[:, np.newaxis]
    chosen = is_in_part(part, np.arange(mask.shape[1])[np.newaxis], num_batches)
    return mask * chosen[..., np.newaxis]


def _fill_up(array: np.ndarray, clients: int) -> np.ndarray:
    """Appends zeros to the first axis up to a length of `clients`."""
    missing = clients - array.shape[0]
    return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array


def _touched(
    ids: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """`touched_rows` of several parts, with ids of shape (C, N, B, ...): several an example."""
    flat_ids, flat_masks = [], []
    for part, mask in zip(ids, masks):
        mask = np.broadcast_to(mask.reshape(mask.shape + (1,) * (part.ndim - 3)), part.shape)
        flat_ids.append(part.reshape(part.shape[0], 1, -1))
        flat_masks.append(mask.reshape(part.shape[0], 1, -1))
    rows, positions = touched_rows(np.concatenate(flat_ids, 2), np.concatenate(flat_masks, 2))
    ends = np.cumsum([part.shape[2] for part in flat_ids])[:-1]
    parts = np.split(positions[:, 0], ends, axis=1)
    return rows, [p.reshape(part.shape) for p, part in zip(parts, ids)]


def as_examples(model: PartitionedModel, member: Mapping[str, Any]) -> Examples:
    """Turns a value of `packed_type` into `Examples`, inside a TFF computation."""
    features = dict(member["features"])
    return Examples(
        features=features,
        labels=member["labels"],
        mask=member["mask"],
        rows=dict(member["rows"]),
        positions={**dict(member["positions"]), **_local_positions(model, features)},
    )


def _local_positions(model: PartitionedModel, features: Mapping[str, tf.Tensor]) -> dict:
    """Of a local table a client has all rows, so ids stand where they say."""
    return {
        name: tf.cast(features[feature], tf.int32)
        for name, feature in model.tables.items()
        if name not in model.global_tables
    }


def dataset_type(model: PartitionedModel) -> tff.SequenceType:
    """Returns the TFF type of one client's batches: `OrderedDict(x=features, y=labels)` each."""
    element = collections.OrderedDict(
        x=_ordered(
            {k: (s.dtype.as_numpy_dtype, list(s.shape)) for k, s in model.input_spec.items()}
        ),
        y=(model.label_spec.dtype.as_numpy_dtype, list(model.label_spec.shape)),
    )
    return tff.SequenceType(tff.to_type(element))


def client_datasets(
    model: PartitionedModel,
    dataset: ClientDataset,
    client_indices: Sequence[int],
    *,
    batch_size: int,
) -> list[tf.data.Dataset]:
    """Returns a cohort for per-client execution: a dataset of batches for each client."""
    dataset = check_data(model, dataset)

    def client(index: int) -> tf.data.Dataset:
        features, labels = dataset.client(index)
        columns = collections.OrderedDict(
            x=_ordered({k: tf.cast(features[k], s.dtype) for k, s in model.input_spec.items()}),
            y=tf.cast(labels, model.label_spec.dtype),
        )
        return tf.data.Dataset.from_tensor_slices(columns).batch(batch_size)

    return [client(int(index)) for index in client_indices]


def examples_from_dataset(model: PartitionedModel, dataset: tf.data.Dataset) -> Examples:
    """Turns one client's batches into `Examples` of a stack of one, inside a TFF computation.

    Args:
        model: The partitioned model.
        dataset: Batches of `dataset_type`, of any sizes.
    """

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
    rows, positions = {}, _local_positions(model, features)
    for name, feature in model.global_tables.items():
        ids = features[feature]
        unique, index = tf.unique(tf.reshape(ids, [-1]))
        rows[name] = tf.cast(unique, tf.int32)[tf.newaxis]
        positions[name] = tf.reshape(index, tf.shape(ids))
    examples = Examples(features, batches["y"][tf.newaxis], mask, rows, positions)
    return tf.nest.map_structure(lambda t: tf.ensure_shape(t, [1, *t.shape[1:]]), examples)


def _ordered(mapping: Mapping[str, Any]) -> collections.OrderedDict:
    return collections.OrderedDict(sorted(mapping.items()))

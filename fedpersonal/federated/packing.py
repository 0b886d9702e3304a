"""Padded arrays of many clients' examples, for training and evaluation."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.client.values import Examples
from fedpersonal.data.batches import pad_batches, touched_rows
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.shuffle import Shuffle
from fedpersonal.data.splits import is_in_part
from fedpersonal.model.examples import check_data
from fedpersonal.model.partition import PartitionedModel

# From this number of clients on, the size of the largest one hardly varies between rounds.
_LARGE_SHARD = 16


def packed_type(
    model: PartitionedModel,
    *,
    clients_per_shard: int,
    batch_size: int | None,
    num_passes: int = 0,
) -> tff.StructWithPythonType:
    """Returns the TFF type of a shard's `Examples`, for any number of batches and rows.

    A batch size of None allows any. `num_passes` is the number of passes over the examples that are
    shuffled, each in another order; 0 if none is.

    The number of clients is fixed, because TensorFlow is much faster with static shapes.
    """
    tables = model.packed_tables
    shape = [clients_per_shard, None, batch_size]

    def batched(spec: tf.TensorSpec) -> tff.TensorType:
        return tff.TensorType(spec.dtype.as_numpy_dtype, [*shape, *spec.shape[1:]])

    positions = {
        name: tff.TensorType(np.int32, [*shape, *model.input_spec[feature].shape[1:]])
        for name, feature in tables.items()
    }
    rows = dict.fromkeys(tables, tff.TensorType(np.int32, [clients_per_shard, None]))
    fields = collections.OrderedDict(
        features=by_name({k: batched(s) for k, s in model.input_spec.items()}),
        labels=batched(model.label_spec),
        mask=tff.TensorType(np.float32, shape),
        rows=by_name(rows),
        positions=by_name(positions),
    )
    if num_passes:
        order = [clients_per_shard, num_passes, None, batch_size]
        fields["order"] = tff.TensorType(np.int32, order)
    return tff.to_type(fields)


def pack_clients(
    model: PartitionedModel,
    dataset: ClientDataset,
    client_indices: Sequence[int] | np.ndarray,
    *,
    clients_per_shard: int,
    batch_size: int,
    touched_data: str = "all",
    shuffle: Shuffle | None = None,
    round_number: int = 0,
) -> collections.OrderedDict:
    """Returns the padded arrays, of `packed_type`, of at most `clients_per_shard` clients.

    Args:
        model: The partitioned model.
        dataset: All clients' examples.
        client_indices: The clients, as indices into `dataset`.
        clients_per_shard: The number of clients, with clients without examples as padding.
        batch_size: Examples per batch.
        touched_data: The part of the data whose lookups need rows per client:
            `Algorithm.touched_data` for training; `none` for neither rows nor positions.
        shuffle: The orders of examples; None for the data's order.
        round_number: The round, by which examples are shuffled.
    """
    orders: list[np.ndarray] = []
    if shuffle is not None:
        indices = np.asarray(client_indices, np.int64)
        orders = shuffle.orders(
            dataset.client_ids[indices].tolist(), dataset.counts[indices], round_number
        )
    is_before_packing = shuffle is not None and not shuffle.is_each_pass
    (packed,) = pack_parts(
        model,
        (dataset,),
        client_indices,
        clients_per_shard=clients_per_shard,
        batch_sizes=(batch_size,),
        touched_data=touched_data,
        orders=[order for (order,) in orders] if is_before_packing else None,
    )
    if shuffle is not None and shuffle.is_each_pass:
        packed["order"] = _pack_orders(orders, shuffle.num_passes, packed["mask"].shape)
    return packed


def _pack_orders(
    orders: Sequence[np.ndarray], num_passes: int, shape: tuple[int, ...]
) -> np.ndarray:
    """Returns the place, of a client's N * B, of each example of each pass.

    The result is int32 (C, passes, N, B); padding keeps its place.
    """
    clients, num_batches, batch_size = shape
    packed = np.empty((clients, num_passes, num_batches * batch_size), np.int32)
    packed[:] = np.arange(num_batches * batch_size, dtype=np.int32)
    for client_places, order in zip(packed, orders):
        client_places[:, : order.shape[1]] = order
    return packed.reshape(clients, -1, num_batches, batch_size)


def pack_parts(
    model: PartitionedModel,
    parts: Sequence[ClientDataset],
    client_indices: Sequence[int] | np.ndarray,
    *,
    clients_per_shard: int,
    batch_sizes: Sequence[int],
    touched_data: str,
    orders: Sequence[np.ndarray] | None = None,
) -> list[collections.OrderedDict]:
    """Packs several data sets of the same clients, with the rows that any of the parts touches."""
    parts = [check_data(model, part) for part in parts]
    arrays = [
        _padded_arrays(model, part, client_indices, clients_per_shard, batch_size, orders)
        for part, batch_size in zip(parts, batch_sizes)
    ]
    masks = [mask for _, _, mask in arrays]
    touched = {
        feature: _no_touched_rows(model.input_spec[feature], masks)
        if touched_data == "none"
        else _find_touched_rows(
            [features[feature] for features, _, _ in arrays],
            [_part_mask(mask, touched_data) for mask in masks],
        )
        for feature in set(model.packed_tables.values())
    }
    tables = model.packed_tables.items()
    return [
        collections.OrderedDict(
            features=by_name(features),
            labels=labels,
            mask=mask,
            rows=by_name({name: touched[feature][0] for name, feature in tables}),
            positions=by_name({name: touched[feature][1][part] for name, feature in tables}),
        )
        for part, (features, labels, mask) in enumerate(arrays)
    ]


def _padded_arrays(
    model: PartitionedModel,
    dataset: ClientDataset,
    client_indices: Sequence[int] | np.ndarray,
    clients: int,
    batch_size: int,
    orders: Sequence[np.ndarray] | None,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns features, labels and mask of `clients` clients, each (C, N, B, ...)."""
    # Batches that no client has cost no steps.
    batches = pad_batches(
        dataset,
        client_indices,
        batch_size=batch_size,
        clients=clients,
        round_up=lambda number: bucket_size(number, 2 if clients >= _LARGE_SHARD else 1),
        orders=orders,
    )
    features = {
        name: batches.features[name].astype(spec.dtype.as_numpy_dtype, copy=False)
        for name, spec in model.input_spec.items()
    }
    labels = batches.labels.astype(model.label_spec.dtype.as_numpy_dtype, copy=False)
    return features, labels, batches.mask


def _no_touched_rows(
    spec: tf.TensorSpec, masks: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns no rows of a table, and unused positions of the input that looks it up.

    Positions take no memory if the input's spec leaves a size open.
    """
    sizes = [size or 0 for size in spec.shape[1:]]
    positions = [np.zeros([*mask.shape, *sizes], np.int32) for mask in masks]
    return np.zeros([len(masks[0]), 0], np.int32), positions


def _part_mask(mask: np.ndarray, part: str) -> np.ndarray:
    """Returns a mask (C, N, B) with the batches outside of a part set to 0."""
    num_batches = mask[..., 0].sum(-1)[:, np.newaxis]  # Padding comes last.
    chosen = is_in_part(part, np.arange(mask.shape[1])[np.newaxis], num_batches)
    return mask * chosen[..., np.newaxis]


def bucket_size(size: int, levels: int = 4) -> int:
    """Rounds a size up to one of `levels` sizes per octave.

    Each shape is compiled anew. Fewer levels mean fewer compilations, but more padding.
    """
    step = max(1, (1 << int(size).bit_length()) // (2 * levels))
    return -(-size // step) * step


def _find_touched_rows(
    ids: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns `touched_rows` of several parts, with ids (C, N, B, ...), several per example."""
    flat_ids, flat_masks = [], []
    for part, mask in zip(ids, masks):
        mask = np.broadcast_to(mask.reshape(mask.shape + (1,) * (part.ndim - 3)), part.shape)
        flat_ids.append(part.reshape(part.shape[0], 1, -1))
        flat_masks.append(mask.reshape(part.shape[0], 1, -1))
    levels = 4 if len(ids[0]) >= _LARGE_SHARD else 1
    rows, positions = touched_rows(
        np.concatenate(flat_ids, 2),
        np.concatenate(flat_masks, 2),
        round_up=lambda number: bucket_size(number, levels),
    )
    ends = np.cumsum([part.shape[2] for part in flat_ids])[:-1]
    parts = np.split(positions[:, 0], ends, axis=1)
    return rows, [p.reshape(part.shape) for p, part in zip(parts, ids)]


def as_examples(model: PartitionedModel, packed: Mapping[str, Any]) -> Examples:
    """Turns a value of `packed_type` into `Examples`, inside a TFF computation."""
    features = dict(packed["features"])
    return Examples(
        features=features,
        labels=packed["labels"],
        mask=packed["mask"],
        rows=dict(packed["rows"]),
        positions={**dict(packed["positions"]), **local_positions(model, features)},
        order=packed["order"] if "order" in dict(packed) else None,
    )


def local_positions(model: PartitionedModel, features: Mapping[str, tf.Tensor]) -> dict:
    """Returns the positions of ids of local tables: the ids, or 0 if a client has a single row."""
    return {
        name: tf.cast(features[feature], tf.int32) * int(name not in model.per_client_rows)
        for name, feature in model.tables.items()
        if name not in model.packed_tables
    }


def by_name(mapping: Mapping[str, Any]) -> collections.OrderedDict:
    """Sorts a mapping by its names, since types and values must have the same order."""
    return collections.OrderedDict(sorted(mapping.items()))

"""Many clients' examples as padded arrays: to train and to evaluate."""

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

# The largest of so many clients is about as large in each round; that of fewer is not.
_MANY = 16


def packed_type(
    model: PartitionedModel,
    *,
    clients_per_shard: int,
    batch_size: int | None,
    num_passes: int = 0,
) -> tff.StructWithPythonType:
    """Returns the TFF type of a shard's `Examples`, for any number of batches and rows.

    A batch size of None is any. Where passes over the examples are shuffled, each has an order of
    its own.

    The number of clients is fixed, because TensorFlow is much faster with known shapes.
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

    Clients are indices into `dataset`; what room is left is filled with clients without examples.
    `touched_data` is the part of the data whose lookups need rows of their own:
    `Algorithm.touched_data` for training, `none` where no client has rows for itself: then there
    are neither rows nor positions. `shuffle` draws the orders of examples in a round.
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
    """Returns where, among a client's (N * B) places, each example of each pass is found.

    int32 (C, passes, N, B); padding stays where it is.
    """
    clients, num_batches, batch_size = shape
    packed = np.empty((clients, num_passes, num_batches * batch_size), np.int32)
    packed[:] = np.arange(num_batches * batch_size, dtype=np.int32)
    for own, order in zip(packed, orders):
        own[:, : order.shape[1]] = order
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
    """Packs several data sets of the same clients, whose touched rows are those of all parts."""
    parts = [check_data(model, part) for part in parts]
    arrays = [
        _padded_arrays(model, part, client_indices, clients_per_shard, batch_size, orders)
        for part, batch_size in zip(parts, batch_sizes)
    ]
    masks = [mask for _, _, mask in arrays]
    touched = {
        feature: _untouched(model.input_spec[feature], masks)
        if touched_data == "none"
        else _touched(
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
    # Batches that nobody has cost no steps.
    batches = pad_batches(
        dataset,
        client_indices,
        batch_size=batch_size,
        clients=clients,
        round_up=lambda number: roomy(number, 2 if clients >= _MANY else 1),
        orders=orders,
    )
    features = {
        name: batches.features[name].astype(spec.dtype.as_numpy_dtype, copy=False)
        for name, spec in model.input_spec.items()
    }
    labels = batches.labels.astype(model.label_spec.dtype.as_numpy_dtype, copy=False)
    return features, labels, batches.mask


def _untouched(
    spec: tf.TensorSpec, masks: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns no rows of a table, and positions that nobody reads of the input that looks it up.

    They take no room where the input's spec leaves a size open.
    """
    sizes = [size or 0 for size in spec.shape[1:]]
    positions = [np.zeros([*mask.shape, *sizes], np.int32) for mask in masks]
    return np.zeros([len(masks[0]), 0], np.int32), positions


def _part_mask(mask: np.ndarray, part: str) -> np.ndarray:
    """Returns a mask (C, N, B) without the batches that are not in a part."""
    num_batches = mask[..., 0].sum(-1)[:, np.newaxis]  # Padding comes last.
    chosen = is_in_part(part, np.arange(mask.shape[1])[np.newaxis], num_batches)
    return mask * chosen[..., np.newaxis]


def roomy(size: int, levels: int = 4) -> int:
    """Rounds a size up to one of some levels an octave.

    What is compiled is so for each shape anew: with fewer levels less often, and there is more room
    that nothing fills.
    """
    step = max(1, (1 << int(size).bit_length()) // (2 * levels))
    return -(-size // step) * step


def _touched(
    ids: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """`touched_rows` of several parts, with ids of shape (C, N, B, ...): several an example."""
    flat_ids, flat_masks = [], []
    for part, mask in zip(ids, masks):
        mask = np.broadcast_to(mask.reshape(mask.shape + (1,) * (part.ndim - 3)), part.shape)
        flat_ids.append(part.reshape(part.shape[0], 1, -1))
        flat_masks.append(mask.reshape(part.shape[0], 1, -1))
    levels = 4 if len(ids[0]) >= _MANY else 1
    rows, positions = touched_rows(
        np.concatenate(flat_ids, 2),
        np.concatenate(flat_masks, 2),
        round_up=lambda number: roomy(number, levels),
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
    """Returns where ids of local tables stand: where they say, if a client has all rows."""
    return {
        name: tf.cast(features[feature], tf.int32) * int(name not in model.own_rows)
        for name, feature in model.tables.items()
        if name not in model.packed_tables
    }


def by_name(mapping: Mapping[str, Any]) -> collections.OrderedDict:
    """Orders a mapping by its names, as types and values must agree on an order."""
    return collections.OrderedDict(sorted(mapping.items()))

"""Many clients' examples, checked against a model, as padded arrays: to train and to evaluate."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.client.values import Examples
from fedpersonal.data.batches import pad_batches, touched_rows
from fedpersonal.data.clients import IGNORED_WEIGHT, ClientDataset
from fedpersonal.data.shuffle import Shuffle
from fedpersonal.data.splits import is_in_part
from fedpersonal.errors import UserError
from fedpersonal.model.partition import PartitionedModel

# Data whose only column has another name than the model's only input: the same with that name.
_RENAMED: weakref.WeakKeyDictionary[ClientDataset, dict[str, ClientDataset]]
_RENAMED = weakref.WeakKeyDictionary()

# The least and the largest label.
_RANGES: weakref.WeakKeyDictionary[ClientDataset, tuple[Any, Any]] = weakref.WeakKeyDictionary()

# The largest of so many clients is about as large in each round; that of fewer is not.
_MANY = 16


def check_data(model: PartitionedModel, dataset: ClientDataset) -> ClientDataset:
    """Checks clients' examples against a model, and returns them under the model's names.

    Features are the model's inputs by name; there may be others. One feature alone is the input of
    a model with one input, whatever their names. A UserError says that an input has no feature, a
    column's shape or dtype is not the model's, a label is not one of the loss, or that nothing
    would read the feature `sample_weight`.
    """
    dataset = _matched(model, dataset)
    for name, spec in model.input_spec.items():
        _check_column(f"feature {name!r}", f"input {name!r}", dataset.features[name], spec)
    _check_column("labels", "label_spec", dataset.labels, model.label_spec)
    _check_labels(model, dataset)
    if "sample_weight" in dataset.features and "sample_weight" not in model.input_spec:
        raise UserError(f"sample_weight is a feature, and no input of the model. {IGNORED_WEIGHT}")
    return dataset


def _check_labels(model: PartitionedModel, dataset: ClientDataset) -> None:
    if model.label_range is None or not len(dataset.labels):
        return
    if dataset not in _RANGES:  # It is looked at in each round.
        _RANGES[dataset] = dataset.labels.min(), dataset.labels.max()
    (least, most), (from_, to) = _RANGES[dataset], model.label_range
    if not from_ <= least <= most <= to:
        wrong = most if most > to else least
        raise UserError(
            f"labels must be {from_} to {to}, as of the model's loss and outputs; some is {wrong}."
        )


def _matched(model: PartitionedModel, dataset: ClientDataset) -> ClientDataset:
    missing = sorted(set(model.input_spec) - set(dataset.features))
    if not missing:
        return dataset
    if len(model.input_spec) == 1 and len(dataset.features) == 1:
        known = _RENAMED.setdefault(dataset, {})
        if missing[0] not in known:
            (column,) = dataset.features.values()
            known[missing[0]] = ClientDataset(
                dataset.client_ids, dataset.offsets, {missing[0]: column}, dataset.labels
            )
        return known[missing[0]]
    raise UserError(
        f"the data has no feature for the model's input {missing[0]!r}: its features are "
        f"{sorted(dataset.features)}, the model's inputs {sorted(model.input_spec)}. They are "
        "matched by name."
    )


def _check_column(name: str, wanted: str, column: np.ndarray, spec: tf.TensorSpec) -> None:
    """Checks a column (num_examples, ...) against a spec (batch, ...)."""
    if column.dtype.kind not in "biuf":
        raise UserError(
            f"{name} has dtype {column.dtype}; the model's {wanted} is {spec.dtype.name}. Make "
            f"numbers of it, an array of one shape for all examples."
        )
    if column.dtype.kind == "f" and spec.dtype.is_integer:
        hint = "; or give PartitionedModel another label_spec" if name == "labels" else ""
        raise UserError(
            f"{name} has dtype {column.dtype}; the model's {wanted} is {spec.dtype.name}, and "
            f"fractions would be lost. Use .astype(np.{spec.dtype.name}) if there are none{hint}."
        )
    shape, expected = column.shape[1:], tuple(spec.shape[1:])
    if not spec.shape[1:].is_compatible_with(shape):
        raise UserError(
            f"{name} has shape {shape} an example; the model's {wanted} has {expected}."
            + (" Give PartitionedModel the label_spec." if name == "labels" else "")
        )


def check_own_rows(model: PartitionedModel, dataset: ClientDataset) -> None:
    """Raises a UserError if a client has several rows of a table of which it copies its own."""
    counts = dataset.counts[dataset.counts > 0]
    starts = dataset.offsets[:-1][dataset.counts > 0]
    for name, feature in model.own_rows.items():
        ids = dataset.features[feature].reshape(len(dataset.labels), -1)
        if (ids != np.repeat(ids[starts, 0], counts)[:, np.newaxis]).any():
            raise UserError(
                f"a client copies its one row of {model.copies[name]!r}; some client has several "
                f"ids in its input {feature!r}."
            )


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
    is_each_pass, orders = False, None
    if shuffle is not None:
        is_each_pass = shuffle.is_each_pass
        indices = np.asarray(client_indices, np.int64)
        orders = shuffle.orders(
            dataset.client_ids[indices].tolist(), dataset.counts[indices], round_number
        )
    (packed,) = pack_parts(
        model,
        (dataset,),
        client_indices,
        clients_per_shard=clients_per_shard,
        batch_sizes=(batch_size,),
        touched_data=touched_data,
        orders=orders and [order for (order,) in orders] if not is_each_pass else None,
    )
    if is_each_pass:
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

"""Whether clients' data fits a model, told before anything slow."""

from __future__ import annotations

import weakref

import numpy as np
import tensorflow as tf

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.model.partition import PartitionedModel

# Data whose only column has another name than the model's only input: the same with that name.
_RENAMED: weakref.WeakKeyDictionary[ClientDataset, dict[str, ClientDataset]]
_RENAMED = weakref.WeakKeyDictionary()


def check_data(model: PartitionedModel, dataset: ClientDataset) -> ClientDataset:
    """Checks clients' examples against a model, and returns them under the model's names.

    Features are the model's inputs by name; there may be others. One feature alone is the input of
    a model with one input, whatever their names. A UserError says that an input has no feature, or
    that a column's shape or dtype is not the model's.
    """
    dataset = _matched(model, dataset)
    for name, spec in model.input_spec.items():
        _check_column(f"feature {name!r}", f"input {name!r}", dataset.features[name], spec)
    _check_column("labels", "label_spec", dataset.labels, model.label_spec)
    return dataset


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

"""Checks of examples against a model: clients' examples and inputs of predictions.

Training, evaluation and prediction check all their examples here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from fedpersonal.data.clients import IGNORED_WEIGHT, ClientDataset, as_column
from fedpersonal.errors import UserError, join_words, type_name, with_count
from fedpersonal.model.ids import RowSelection
from fedpersonal.model.partition import PartitionedModel

# Data with a single column, to the same data with that column under the name of the model's input.
_RENAMED: weakref.WeakKeyDictionary[ClientDataset, dict[str, ClientDataset]]
_RENAMED = weakref.WeakKeyDictionary()
# Data to the models that they have been checked against: each round uses the same data.
_CHECKED: weakref.WeakKeyDictionary[ClientDataset, weakref.WeakSet[PartitionedModel]]
_CHECKED = weakref.WeakKeyDictionary()
# Model to the columns that a warning has been logged for.
_WARNED: weakref.WeakKeyDictionary[PartitionedModel, set[str]] = weakref.WeakKeyDictionary()


def check_is_clients(name: str, value: object) -> None:
    """Raises a UserError, which says how to make a `ClientDataset`, unless a value is one."""
    if not isinstance(value, ClientDataset):
        raise UserError(
            f"{name} must be a ClientDataset, such as from "
            "clients_from_datasets({name: dataset}) or clients_from_table(...), "
            f"not {type_name(value)}."
        )


def check_data(model: PartitionedModel, dataset: ClientDataset) -> ClientDataset:
    """Checks clients' examples against a model, and returns them under the model's names.

    Features are matched with the model's inputs by name; further features are allowed. A single
    feature is matched with a single input, even if their names differ.

    Raises:
        UserError: If an input has no feature; a column's shape or dtype is not the model's; a value
            is out of the range of the dtype, of a table that it selects a row of, or of the loss;
            or there is a feature `sample_weight`, which would be ignored. It names the client.
    """
    dataset = _match_inputs(model, dataset)
    checked = _CHECKED.setdefault(dataset, weakref.WeakSet())
    if model.base in checked:
        return dataset
    if "sample_weight" in dataset.features and "sample_weight" not in model.input_spec:
        raise UserError(f"sample_weight is a feature, and no input of the model. {IGNORED_WEIGHT}")

    def place(row: int) -> str:
        client = int(np.searchsorted(dataset.offsets, row, side="right")) - 1
        return f"client {dataset.client_ids[client]!r}"

    columns = {f"feature {name!r}": name for name in model.input_spec}
    _check_columns(
        model, {shown: dataset.features[n] for shown, n in columns.items()}, columns, place
    )
    labels = _Column("labels", dataset.labels, place)
    labels.check_kind("label_spec", model.label_spec)
    labels.check_numbers(model.base, model.label_spec)
    _check_classes(model, labels)
    checked.add(model.base)
    return dataset


def check_features(model: PartitionedModel, features: Any) -> dict[str, np.ndarray]:
    """Checks features to predict from, and returns them with the inputs' names and dtypes.

    Args:
        model: The model.
        features: Input name to (n, ...); further names are allowed. Also a table whose columns have
            the inputs' names. For a model with one input, also a single array, or one array under
            any name.

    Raises:
        UserError: As in `check_data`; it names the row.
    """
    names = [*model.input_spec]
    if not isinstance(features, Mapping) and hasattr(features, "columns"):
        if not set(names) <= {*map(str, features.columns)}:
            raise UserError(
                f"features is a {type_name(features)} without columns {join_words(names)}; give "
                "arrays by the names of the model's inputs, such as "
                f"{{{names[0]!r}: table[[...]].to_numpy()}}."
            )
        features = {name: features[name] for name in names}
    elif not isinstance(features, Mapping):
        if len(names) > 1 or isinstance(features, (str, ClientDataset)) or features is None:
            raise UserError(
                f"features must map the model's inputs, {join_words(names)}, to arrays (n, ...), "
                f"not be {type_name(features)}."
            )
        features = {names[0]: features}
    if len(names) == 1 and len(features) == 1:
        features = dict(zip(names, features.values()))
    missing = [name for name in names if name not in features]
    if missing:
        raise UserError(
            f"features lack the model's input {', '.join(map(repr, missing))}; got {[*features]}."
        )
    shown = {f"features[{name!r}]": name for name in names}
    columns = {key: as_column(key, features[name]) for key, name in shown.items()}
    scalar = [key for key, column in columns.items() if not column.ndim]
    if scalar:
        raise UserError(f"{scalar[0]} is one value; give an array with one row per example.")
    counts = {key: len(column) for key, column in columns.items()}
    if len({*counts.values()}) > 1:
        unequal = ", ".join(f"{key} has {with_count(n, 'rows')}" for key, n in counts.items())
        raise UserError(f"features must have one row per example: {unequal}.")
    _check_columns(model, columns, shown, lambda row: f"row {row}")
    return {
        name: columns[key].astype(model.input_spec[name].dtype.as_numpy_dtype, copy=False)
        for key, name in shown.items()
    }


def check_per_client_rows(model: PartitionedModel, dataset: ClientDataset) -> None:
    """Raises a UserError if a client uses several rows of a table of which it copies one row."""
    counts = dataset.counts[dataset.counts > 0]
    starts = dataset.offsets[:-1][dataset.counts > 0]
    for name, feature in model.per_client_rows.items():
        ids = dataset.features[feature].reshape(len(dataset.labels), -1)
        if (ids != np.repeat(ids[starts, 0], counts)[:, np.newaxis]).any():
            raise UserError(
                f"each client copies one row of {model.copies[name]!r}, but some client has "
                f"several ids in its input {feature!r}."
            )


def _match_inputs(model: PartitionedModel, dataset: ClientDataset) -> ClientDataset:
    missing = sorted(set(model.input_spec) - set(dataset.features))
    if not missing:
        return dataset
    if len(model.input_spec) == 1 and len(dataset.features) == 1:
        renamed = _RENAMED.setdefault(dataset, {})
        if missing[0] not in renamed:
            (column,) = dataset.features.values()
            renamed[missing[0]] = ClientDataset(
                dataset.client_ids, dataset.offsets, {missing[0]: column}, dataset.labels
            )
        return renamed[missing[0]]
    raise UserError(
        f"the data has no feature for the model's input {', '.join(map(repr, missing))}: its "
        f"features are {sorted(dataset.features)}, the model's inputs {sorted(model.input_spec)}. "
        "They are matched by name."
    )


def _check_columns(
    model: PartitionedModel,
    columns: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    place: Callable[[int], str],
) -> None:
    """Checks the columns of a model's inputs.

    Args:
        model: The model.
        columns: Name for messages to column.
        names: Name for messages to the input's name.
        place: Maps a row to its client or number, for messages.
    """
    by_input = {names[shown]: _Column(shown, column, place) for shown, column in columns.items()}
    for name, column in by_input.items():
        column.check_kind(f"input {name!r}", model.input_spec[name])
        column.check_numbers(model.base, model.input_spec[name])
    tables = {v.name: (v.shape[0], feature) for v, feature in _lookups(model.base)}
    for table, (rows, feature) in tables.items():
        by_input[feature].check_rows(table, rows)
    for check in model.input_checks:
        if isinstance(check, RowSelection) and check.compute is None:
            by_input[check.inputs[0]].check_rows(check.table, check.rows)
        elif by_input[check.inputs[0]].values.size:
            values = {
                n: by_input[n].values.astype(model.input_spec[n].dtype.as_numpy_dtype, copy=False)
                for n in check.inputs
            }
            if wrong := check.find_wrong(values):
                inputs = ", ".join(by_input[name].name for name in check.inputs)
                raise UserError(f"{inputs} of {place(wrong[0])} {wrong[1]}.")


def _lookups(model: PartitionedModel) -> list[tuple[Any, str]]:
    return [(v, model.tables[v.name]) for v in model.variables if v.name in model.tables]


class _Column:
    """A column of examples, with checks of its values.

    Attributes:
        name: Its name, for messages.
        values: (n, ...) numbers.
        place: Maps a row to its client or number, for messages.
    """

    def __init__(self, name: str, values: np.ndarray, place: Callable[[int], str]):
        self.name, self.values, self.place = name, values, place
        self._bounds: tuple[Any, Any] | None = None

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The least and the largest value; NaN if one is NaN, 0 if there are no values."""
        if self._bounds is None:
            values = self.values
            self._bounds = (values.min(), values.max()) if values.size else (0, 0)
        return self._bounds

    def refuse(self, is_wrong: Callable[[np.ndarray], np.ndarray], must: str) -> None:
        """Raises a UserError that names the first value that is wrong."""
        flat = self.values.reshape(-1)
        place = int(np.argmax(is_wrong(flat)))
        row = place // max(1, flat.size // len(self.values))
        raise UserError(f"{self.name} must be {must}; {self.place(row)} has {flat[place]}.")

    def check_kind(self, target: str, spec: tf.TensorSpec) -> None:
        """Checks dtype and shape against the spec (batch, ...) of an input or the labels."""
        kind = self.values.dtype.kind
        if kind not in "biuf":
            raise UserError(
                f"{self.name} has dtype {self.values.dtype}; the model's {target} is "
                f"{spec.dtype.name}. Make numbers of it, an array of one shape for all examples."
            )
        is_whole = spec.dtype.is_integer or spec.dtype.is_bool
        if kind == "f" and is_whole and self.values.size:
            hint = "; or give PartitionedModel another label_spec" if self.name == "labels" else ""
            raise UserError(
                f"{self.name} has dtype {self.values.dtype}; the model's {target} is "
                f"{spec.dtype.name}, and fractions would be lost. Use "
                f".astype(np.{np.dtype(spec.dtype.as_numpy_dtype).name}) if there are none{hint}."
            )
        shape, expected = self.values.shape[1:], tuple(spec.shape[1:])
        if not spec.shape[1:].is_compatible_with(shape):
            raise UserError(
                f"{self.name} has shape {shape} per example; the model's {target} has {expected}."
                + (" Give PartitionedModel the label_spec." if self.name == "labels" else "")
            )

    def check_numbers(self, model: PartitionedModel, spec: tf.TensorSpec) -> None:
        """Checks that a spec's dtype holds all values, and warns of values that are not finite."""
        dtype = np.dtype(spec.dtype.as_numpy_dtype)
        if self.values.dtype.kind == "f":
            least, most = self.bounds
            if not (np.isfinite(least) and np.isfinite(most)):
                self._warn_of_infinite(model)
            largest: Any = np.finfo(dtype).max if dtype.kind == "f" else np.inf
            if dtype.itemsize < self.values.dtype.itemsize and not (
                -largest <= least and most <= largest
            ):
                beyond = self.values[np.isfinite(self.values)]
                if beyond.size and np.abs(beyond).max() > largest:
                    self.refuse(
                        lambda v: np.isfinite(v) & (np.abs(v) > largest),
                        f"at most {largest:.3g}, as {dtype.name} holds",
                    )
        elif self.values.dtype != dtype and dtype.kind in "iub":
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            self.check_between(int(low), int(high), f"as {dtype.name} holds")

    def check_between(self, low: int, high: int, why: str) -> None:
        """Checks that all values are in a range."""
        least, most = self.bounds
        # Python compares integers exactly; NumPy converts those of two dtypes to floats.
        if not (low <= _plain(least) and _plain(most) <= high):
            self.refuse(lambda values: ~_are_between(values, low, high), f"{low} to {high}, {why}")

    def check_rows(self, table: str, rows: int) -> None:
        """Checks that all values, which select rows of a table, are in its range."""
        why = f"as {table!r} has {with_count(rows, 'rows')}"
        if self.values.dtype.kind != "f":
            self.check_between(0, rows - 1, why)
        elif not (-1 < self.bounds[0] and self.bounds[1] < rows):  # The model drops fractions.
            self.refuse(lambda v: ~((v > -1) & (v < rows)), f"0 to {rows - 1}, {why}")

    def _warn_of_infinite(self, model: PartitionedModel) -> None:
        warned = _WARNED.setdefault(model, set())
        if self.name not in warned:
            warned.add(self.name)
            wrong = np.flatnonzero(~np.isfinite(self.values.reshape(len(self.values), -1)).all(1))
            logging.warning(
                f"{self.name} has NaN or infinite values in {with_count(len(wrong), 'examples')}, "
                f"first of {self.place(int(wrong[0]))}: unless the model makes numbers of them, "
                "these clients' updates are dropped, and their predictions are NaN."
            )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _are_between(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Returns which values are in a range, whose bounds may exceed the dtype's."""
    if values.dtype.kind in "iu":
        limits = np.iinfo(values.dtype)
        low, high = max(low, int(limits.min)), min(high, int(limits.max))
    return (values >= low) & (values <= high)


def _check_classes(model: PartitionedModel, labels: _Column) -> None:
    if not labels.values.size:
        return
    if model.takes_class_ids and labels.values.dtype.kind == "f":
        if (np.mod(labels.values, 1) != 0).any():
            labels.refuse(lambda v: np.mod(v, 1) != 0, "whole numbers, as classes are")
    if model.label_range is not None:
        labels.check_between(*model.label_range, "as required by the model's loss and outputs")

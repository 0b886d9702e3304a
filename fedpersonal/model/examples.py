"""Examples, checked against a model: those of clients, and those that a model predicts.

Training, evaluation and prediction take no examples but through here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from fedpersonal.data.clients import IGNORED_WEIGHT, ClientDataset, as_column
from fedpersonal.errors import UserError, counted, kind_of, listed
from fedpersonal.model.ids import RowSelection
from fedpersonal.model.partition import PartitionedModel

# Data whose only column has another name than the model's only input: the same with that name.
_RENAMED: weakref.WeakKeyDictionary[ClientDataset, dict[str, ClientDataset]]
_RENAMED = weakref.WeakKeyDictionary()
# Models that data have been checked against: rounds take the same data again and again.
_CHECKED: weakref.WeakKeyDictionary[ClientDataset, weakref.WeakSet[PartitionedModel]]
_CHECKED = weakref.WeakKeyDictionary()
# The columns of each model of which a warning has been given.
_WARNED: weakref.WeakKeyDictionary[PartitionedModel, set[str]] = weakref.WeakKeyDictionary()


def check_is_clients(name: str, value: object) -> None:
    """Raises a UserError that says what to give in place of a value that is no `ClientDataset`."""
    if not isinstance(value, ClientDataset):
        raise UserError(
            f"{name} must be a ClientDataset, as of clients_from_datasets({{name: dataset}}) or "
            f"clients_from_table(...), not {kind_of(value)}."
        )


def check_data(model: PartitionedModel, dataset: ClientDataset) -> ClientDataset:
    """Checks clients' examples against a model, and returns them under the model's names.

    Features are the model's inputs by name; there may be others. One feature alone is the input of
    a model with one input, whatever their names.

    Raises:
        UserError: If an input has no feature; a column's shape or dtype is not the model's; a value
            does not fit the dtype, a table that it selects a row of, or the loss; or nothing would
            read the feature `sample_weight`. It names the client.
    """
    dataset = _matched(model, dataset)
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
    """Checks what a model predicts, and returns it by the names and in the dtypes of its inputs.

    Args:
        model: The model.
        features: Input name to (n, ...); there may be others. A single array, or one under another
            name, is that of a model with one input. Of a table, columns with the inputs' names.

    Raises:
        UserError: As of `check_data`; it names the row.
    """
    names = [*model.input_spec]
    if not isinstance(features, Mapping) and hasattr(features, "columns"):
        if not set(names) <= {*map(str, features.columns)}:
            raise UserError(
                f"features is a {kind_of(features)} without columns {listed(names)}; give arrays "
                "by the names of the model's inputs, such as "
                f"{{{names[0]!r}: table[[...]].to_numpy()}}."
            )
        features = {name: features[name] for name in names}
    elif not isinstance(features, Mapping):
        if len(names) > 1 or isinstance(features, (str, ClientDataset)) or features is None:
            raise UserError(
                f"features must map the model's inputs, {listed(names)}, to arrays (n, ...), not "
                f"be {kind_of(features)}."
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
        raise UserError(f"{scalar[0]} is one value; give an array with a row an example.")
    counts = {key: len(column) for key, column in columns.items()}
    if len({*counts.values()}) > 1:
        unequal = ", ".join(f"{key} has {counted(n, 'rows')}" for key, n in counts.items())
        raise UserError(f"features must have a row an example each: {unequal}.")
    _check_columns(model, columns, shown, lambda row: f"row {row}")
    return {
        name: columns[key].astype(model.input_spec[name].dtype.as_numpy_dtype, copy=False)
        for key, name in shown.items()
    }


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
    """Checks the columns of a model's inputs, whose `names` are those of messages to inputs'."""
    found = {names[shown]: _Column(shown, column, place) for shown, column in columns.items()}
    for name, column in found.items():
        column.check_kind(f"input {name!r}", model.input_spec[name])
        column.check_numbers(model.base, model.input_spec[name])
    tables = {v.name: (v.shape[0], feature) for v, feature in _lookups(model.base)}
    for table, (rows, feature) in tables.items():
        found[feature].check_rows(table, rows)
    for check in model.input_checks:
        if isinstance(check, RowSelection) and check.compute is None:
            found[check.inputs[0]].check_rows(check.table, check.rows)
        elif found[check.inputs[0]].values.size:
            given = {
                n: found[n].values.astype(model.input_spec[n].dtype.as_numpy_dtype, copy=False)
                for n in check.inputs
            }
            if wrong := check.find_wrong(given):
                inputs = ", ".join(found[name].name for name in check.inputs)
                raise UserError(f"{inputs} of {place(wrong[0])} {wrong[1]}.")


def _lookups(model: PartitionedModel) -> list[tuple[Any, str]]:
    return [(v, model.tables[v.name]) for v in model.variables if v.name in model.tables]


class _Column:
    """A column of examples, checked.

    Attributes:
        name: Its name, for messages.
        values: (n, ...) numbers.
        place: Maps a row to whose it is, for messages.
    """

    def __init__(self, name: str, values: np.ndarray, place: Callable[[int], str]):
        self.name, self.values, self.place = name, values, place
        self._bounds: tuple[Any, Any] | None = None

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The least and the largest value, NaN where there is one; 0 of a column without values."""
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

    def check_kind(self, wanted: str, spec: tf.TensorSpec) -> None:
        """Checks dtype and shape against a spec (batch, ...)."""
        kind = self.values.dtype.kind
        if kind not in "biuf":
            raise UserError(
                f"{self.name} has dtype {self.values.dtype}; the model's {wanted} is "
                f"{spec.dtype.name}. Make numbers of it, an array of one shape for all examples."
            )
        is_whole = spec.dtype.is_integer or spec.dtype.is_bool
        if kind == "f" and is_whole and self.values.size:
            hint = "; or give PartitionedModel another label_spec" if self.name == "labels" else ""
            raise UserError(
                f"{self.name} has dtype {self.values.dtype}; the model's {wanted} is "
                f"{spec.dtype.name}, and fractions would be lost. Use "
                f".astype(np.{np.dtype(spec.dtype.as_numpy_dtype).name}) if there are none{hint}."
            )
        shape, expected = self.values.shape[1:], tuple(spec.shape[1:])
        if not spec.shape[1:].is_compatible_with(shape):
            raise UserError(
                f"{self.name} has shape {shape} an example; the model's {wanted} has {expected}."
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
        # Python compares whole numbers exactly; NumPy turns those of two dtypes into floats.
        if not (low <= _plain(least) and _plain(most) <= high):
            self.refuse(lambda values: ~_are_between(values, low, high), f"{low} to {high}, {why}")

    def check_rows(self, table: str, rows: int) -> None:
        """Checks that all values are rows of a table, which the model selects by them."""
        why = f"as {table!r} has {counted(rows, 'rows')}"
        if self.values.dtype.kind != "f":
            self.check_between(0, rows - 1, why)
        elif not (-1 < self.bounds[0] and self.bounds[1] < rows):  # A model drops the fraction.
            self.refuse(lambda v: ~((v > -1) & (v < rows)), f"0 to {rows - 1}, {why}")

    def _warn_of_infinite(self, model: PartitionedModel) -> None:
        warned = _WARNED.setdefault(model, set())
        if self.name not in warned:
            warned.add(self.name)
            wrong = np.flatnonzero(~np.isfinite(self.values.reshape(len(self.values), -1)).all(1))
            logging.warning(
                f"{self.name} has NaN or infinite values in {counted(len(wrong), 'examples')}, "
                f"first of {self.place(int(wrong[0]))}: unless the model makes numbers of them, "
                "these clients' updates are dropped, and their predictions are NaN."
            )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _are_between(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Returns which values are in a range; its bounds may lie beyond what the dtype holds."""
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
        labels.check_between(*model.label_range, "as of the model's loss and outputs")

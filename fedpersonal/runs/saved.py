"""The files of a trained model in its run's folder."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedpersonal.errors import UserError, join_words
from fedpersonal.files import OWNER_ONLY, damaged, read_arrays, write_arrays, write_json
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel, VariableSpec
from fedpersonal.runs.kept import Snapshot
from fedpersonal.runs.record import (
    ABOUT,
    REQUIRED_FIELDS,
    ROUND,
    WEIGHTS,
    RunRecord,
    read_about,
)

_GLOBAL, _LOCAL, _CLIENTS = "global ", "local ", "clients"


class Trained(Protocol):
    """The parts of a `TrainedModel` that are saved, besides those of `REQUIRED_FIELDS`."""

    @property
    def model(self) -> PartitionedModel:
        """The partitioned model."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that trained the model."""

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """The global variables, by name."""

    @property
    def round_number(self) -> int:
        """The last round."""


@dataclasses.dataclass(frozen=True, eq=False)
class SavedModel:
    """A saved model.

    Attributes:
        weights: Global variable's name to value.
        snapshot: The variables that clients had kept in the model's round, if that is not the last.
        about: `batch_size`, `seed`, `round_number` and the argument `about` of `save_model`.
    """

    weights: Mapping[str, np.ndarray]
    snapshot: Snapshot | None
    about: Mapping[str, Any]


def save_model(
    folder: RunRecord,
    trained: Trained,
    about: Mapping[str, Any],
    *,
    snapshot: Snapshot | None = None,
) -> None:
    """Writes the files that only `load_run` needs.

    Args:
        folder: The run's folder.
        trained: The model.
        about: Further entries: a task's `sizes`, from which it builds the partitioned model.
        snapshot: The variables that clients had kept in the model's round; None if the store has
            them.
    """
    arrays = {_GLOBAL + name: np.asarray(value) for name, value in trained.weights.items()}
    if snapshot is not None:
        arrays[_CLIENTS] = snapshot.clients
        arrays.update({_LOCAL + name: value for name, value in snapshot.values.items()})
    fields: dict[str, Any] = {name: getattr(trained, name) for name in REQUIRED_FIELDS}
    spec = trained.model.local_variables
    fields["local"] = {"kept": trained.algorithm.keeps, "variables": [_describe(v) for v in spec]}
    arrays[ROUND] = np.array(trained.round_number)
    if folder.metrics_csv.exists():
        rounds = len(folder.metrics)
        fields["metrics"] = [rounds, folder.metrics_digest(rounds)]
        arrays[ROUND] = np.array(rounds)
    write_arrays(folder.path / WEIGHTS, arrays, permissions=OWNER_ONLY)
    write_json(folder.path / ABOUT, {**about, **fields}, checked=True)


def read_saved_model(path: pathlib.Path) -> SavedModel:
    """Reads the files that `save_model` wrote to a run's folder.

    Raises:
        UserError: If the run has not ended, or a file is damaged.
    """
    about = read_about(path)
    if not os.path.lexists(path / WEIGHTS):
        raise UserError(f"{path}: the run has not ended ({path / WEIGHTS}).")
    arrays = read_arrays(path / WEIGHTS)

    def named(prefix: str) -> dict[str, np.ndarray]:
        return {n[len(prefix) :]: value for n, value in arrays.items() if n.startswith(prefix)}

    snapshot = Snapshot(arrays[_CLIENTS], named(_LOCAL)) if _CLIENTS in arrays else None
    return SavedModel(named(_GLOBAL), snapshot, about)


def check_model(path: pathlib.Path, model: PartitionedModel, saved: SavedModel) -> None:
    """Raises a UserError unless a model has the saved variables."""
    _check_variables(path, "global", model.global_variables, saved.weights)
    snapshot = saved.snapshot
    if snapshot is not None:
        if snapshot.clients.ndim != 1 or snapshot.clients.dtype.kind != "U":
            raise damaged(path / WEIGHTS)
        clients = snapshot.clients.shape
        _check_variables(path, "local", model.local_variables, snapshot.values, clients)


def _describe(variable: VariableSpec) -> dict[str, Any]:
    num_bytes = math.prod(variable.shape) * variable.dtype.size
    dtype, shape = variable.dtype.name, list(variable.shape)
    return {"name": variable.name, "dtype": dtype, "shape": shape, "num_bytes": num_bytes}


def _check_variables(
    path: pathlib.Path,
    kind: str,
    variables: Sequence[VariableSpec],
    values: Mapping[str, np.ndarray],
    outer: tuple[int, ...] = (),
) -> None:
    """Compares values, with outer dimensions `outer`, with the variables of a model."""
    expected = {v.name: f"{v.dtype.name} of shape {(*outer, *v.shape)}" for v in variables}
    saved = {name: f"{v.dtype} of shape {v.shape}" for name, v in values.items()}
    for name, kind_and_shape in expected.items():
        if saved.get(name) != kind_and_shape:
            raise UserError(
                f"{path} is the run of another model: the {kind} variable {name!r} "
                f"({kind_and_shape}) is {saved.get(name, 'missing')} there; the run's are "
                f"{join_words(list(saved))}."
            )

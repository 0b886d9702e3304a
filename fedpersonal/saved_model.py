"""A trained model in its run's folder."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.errors import UserError, listed
from fedpersonal.files import OWNER_ONLY, damaged, read_arrays, write_arrays, write_json
from fedpersonal.local_state.snapshot import Snapshot
from fedpersonal.model.partition import PartitionedModel, VariableSpec
from fedpersonal.simulation.run_record import ABOUT, KNOWN, ROUND, WEIGHTS, RunRecord, read_about
from fedpersonal.trained import TrainedModel

_GLOBAL, _LOCAL, _CLIENTS = "global ", "local ", "clients"


@dataclasses.dataclass(frozen=True, eq=False)
class SavedModel:
    """What was written.

    Attributes:
        weights: Global variable's name to value.
        snapshot: What clients had kept in the round of the model, where that is not the last one.
        about: `batch_size`, `seed`, `round_number` and what `save_model` was given.
    """

    weights: Mapping[str, np.ndarray]
    snapshot: Snapshot | None
    about: Mapping[str, Any]


def save_model(
    folder: RunRecord,
    trained: TrainedModel,
    about: Mapping[str, Any],
    *,
    snapshot: Snapshot | None = None,
) -> None:
    """Writes what `load_run` needs beside the usual files.

    Args:
        folder: The run's folder.
        trained: The model.
        about: What to build the partitioned model of: a task's `sizes`, or `model`, as
            `describe_model` describes it.
        snapshot: What clients had kept in the model's round; None where their store says it.
    """
    arrays = {_GLOBAL + name: np.asarray(value) for name, value in trained.weights.items()}
    if snapshot is not None:
        arrays[_CLIENTS] = snapshot.clients
        arrays.update({_LOCAL + name: value for name, value in snapshot.values.items()})
    known: dict[str, Any] = {name: getattr(trained, name) for name in KNOWN}
    spec = trained.model.local_variables
    known["local"] = {"kept": trained.algorithm.keeps, "variables": [_describe(v) for v in spec]}
    arrays[ROUND] = np.array(trained.round_number)
    if folder.metrics_csv.exists():
        rounds = len(folder.metrics)
        known["metrics"] = [rounds, folder.metrics_digest(rounds)]
        arrays[ROUND] = np.array(rounds)
    write_arrays(folder.path / WEIGHTS, arrays, permissions=OWNER_ONLY)
    write_json(folder.path / ABOUT, {**about, **known}, checked=True)


def read_saved_model(path: pathlib.Path) -> SavedModel:
    """Reads what `save_model` wrote to a run's folder.

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
    """Raises a UserError unless a model has the variables that were saved."""
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
    """Compares values, with so many outer dimensions, with the variables of a model."""
    ours = {v.name: f"{v.dtype.name} of shape {(*outer, *v.shape)}" for v in variables}
    theirs = {name: f"{v.dtype} of shape {v.shape}" for name, v in values.items()}
    for name, own in ours.items():
        if theirs.get(name) != own:
            raise UserError(
                f"{path} is the run of another model: the {kind} variable {name!r} ({own}) is "
                f"{theirs.get(name, 'missing')} there; the run's are {listed(list(theirs))}."
            )

"""Saving of trained models in their runs' folders, and opening of finished runs."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.client.pooled import PACKINGS
from fedpersonal.errors import UserError, join_words, one_line
from fedpersonal.files import OWNER_ONLY, damaged, read_arrays, write_arrays, write_json
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.phases import Phase
from fedpersonal.model.partition import PartitionedModel, VariableSpec
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.kept import Snapshot
from fedpersonal.runs.record import (
    ABOUT,
    REQUIRED_FIELDS,
    ROUND,
    WEIGHTS,
    RunRecord,
    check_rounds,
    read_about,
)
from fedpersonal.runs.store import LOCAL_STATE, LocalStateStore
from fedpersonal.training.trained import EVALUATION_SHARD_SIZE, TrainedModel

_GLOBAL, _LOCAL, _CLIENTS = "global ", "local ", "clients"


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
    trained: TrainedModel,
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


class LoadedRun(RunRecord):
    """A finished run: its files, as in `RunRecord`, and its model."""

    def __init__(
        self,
        path: pathlib.Path,
        model: PartitionedModel | None = None,
        algorithm: Algorithm | None = None,
        finetuning: Sequence[Phase] = (),
    ):
        """Use `load_run`."""
        super().__init__(path)
        self._model, self._algorithm, self._finetuning = model, algorithm, tuple(finetuning)

    @functools.cached_property
    def trained(self) -> TrainedModel:
        """The trained model; `close` it so that other programs can open the local-state store.

        Raises:
            UserError: If the run has not ended, or was resumed since; if it is of another model or
                algorithm than those passed to `load_run`; or if it is of a user's program and its
                algorithm or model was not passed.
        """
        check_rounds(self.path)
        saved = read_saved_model(self.path)
        if "task" in self.config["options"]:
            parts, training_model = self._task_parts(saved.about)
        else:
            parts = self._program_parts()
            training_model = parts["model"]
        fields = {name: saved.about[name] for name in REQUIRED_FIELDS}
        trained = TrainedModel(**{**fields, **parts}, weights=saved.weights, folder=self.path)
        check_model(self.path, trained.model, saved)
        # If another model is evaluated than was trained, clients have kept no variables of it.
        if not trained.algorithm.keeps or trained.model is not training_model:
            return trained
        if saved.snapshot is not None:
            return dataclasses.replace(trained, kept_by=saved.snapshot.kept_by)
        path = self.path / LOCAL_STATE
        if not path.is_file():
            raise UserError(f"{self.path} has no {LOCAL_STATE}, the store of local variables.")
        store = LocalStateStore.open(path, trained.model.local_variables)
        trained.resources.callback(store.close)
        if store.saved_round is None:
            store.close()
            raise damaged(path)
        return dataclasses.replace(
            trained, kept_by=lambda clients: store.unpack(store.read(clients))
        )

    def _program_parts(self) -> dict[str, Any]:
        options, algorithm, model = self.config["options"], self._algorithm, self._model
        if algorithm is None or model is None:
            raise UserError(
                f"{self.path} is the run of a user's program: pass its model and its algorithm, "
                f"{one_line(options.get('method'))}, to load_run."
            )
        finetuning = algorithm.finetuning(self._finetuning)
        passed = {"method": algorithm.name, "finetuning_phases": len(finetuning)}
        for name, value in passed.items():
            if value != options.get(name):
                raise UserError(
                    f"{self.path} is a run with {name} = {one_line(repr(options.get(name)))}, not "
                    f"{value!r}."
                )
        model = algorithm.prepare(model)
        local = [v.name for v in model.local_variables]
        if local != options.get("local_variables"):
            raise UserError(
                f"{self.path} is the run of another model: its local variables are "
                f"{one_line(options.get('local_variables'))}, not {one_line(local)}."
            )
        packing = options.get("packing")
        if packing not in PACKINGS:
            raise damaged(self.config_json)
        return {
            "model": model,
            "algorithm": algorithm,
            "rebuilding": algorithm.personalization(model),
            "finetuning": finetuning,
            "packing": packing,
            "clients_per_shard": EVALUATION_SHARD_SIZE,
        }

    def _task_parts(self, about: Mapping[str, Any]) -> tuple[dict[str, Any], PartitionedModel]:
        if self._model or self._algorithm or self._finetuning:
            raise UserError(
                f"{self.path} is the run of a command, whose folder determines its model and its "
                "algorithm: pass only the folder to load_run."
            )
        options = dict(self.config["options"])
        name = options.pop("task")
        try:
            task = importlib.import_module(name).TASK
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.config_json}: there is no task {one_line(repr(name))} ({one_line(error)})."
            ) from error
        try:
            complete = task.with_defaults(task.options(**{**options, **about.get("chosen", {})}))
        except (TypeError, ValueError) as error:
            line = one_line(error).replace("--", "its option ")
            raise UserError(f"{self.config_json} is of another version: {line}") from error
        try:
            built = task.build(about["sizes"], complete)
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.path / ABOUT} does not fit {self.config_json}: no model can be built from "
                f"it ({one_line(repr(error))})."
            ) from error
        return {**vars(built.evaluator), "algorithm": built.algorithm}, built.model


def load_run(
    folder: str | os.PathLike,
    *,
    model: PartitionedModel | None = None,
    algorithm: Algorithm | None = None,
    finetuning: Sequence[Phase] = (),
) -> LoadedRun:
    """Opens the folder of a finished run.

    Args:
        folder: The folder of a command's run, or the one that a program passed to `Trainer.fit`.
        model: The partitioned model that a program trained; None for a command's run.
        algorithm: The algorithm of a program.
        finetuning: The argument `finetuning` of a program's `Trainer`.

    Raises:
        UserError: If it is no run's folder, or has files of several rounds, such as a finished run
            that was resumed: `RunFolder.read` opens these.

    Examples:
        With all names of `Trainer`'s example:

        >>> trainer.fit(rounds=3, folder="runs/first", progress=False).close()
        >>> run = fp.load_run("runs/first", model=model, algorithm=algorithm)
        >>> len(run.metrics)
        3
        >>> with run.trained as trained:
        ...     sorted(trained.overall(clients))
        ['loss']
    """
    path = RunFolder.read(folder).path
    check_rounds(path)
    return LoadedRun(path, model, algorithm, finetuning)

"""The opening of finished runs: their files, and their trained models."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedpersonal.client.pooled import PACKINGS
from fedpersonal.errors import UserError, one_line
from fedpersonal.files import damaged
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.phases import Phase
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.record import ABOUT, REQUIRED_FIELDS, RunRecord, check_rounds
from fedpersonal.runs.saved import check_model, read_saved_model
from fedpersonal.runs.store import LOCAL_STATE, LocalStateStore
from fedpersonal.training.trained import EVALUATION_SHARD_SIZE, TrainedModel


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

"""A run's folder, opened again: what came of it, and its trained model."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedpersonal.algorithm import Algorithm, Phase
from fedpersonal.client.pooled import PACKINGS
from fedpersonal.errors import UserError, one_line
from fedpersonal.files import damaged
from fedpersonal.local_state.store import LOCAL_STATE, LocalStateStore
from fedpersonal.model.description import read_model
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.saved_model import check_model, read_saved_model
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.run_record import ABOUT, RunRecord, check_rounds, read_about
from fedpersonal.trained import EVALUATED_TOGETHER, TrainedModel


class LoadedRun(RunRecord):
    """A finished run: its files as a `RunRecord` reads them, and its model."""

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

    @property
    def metrics(self) -> pd.DataFrame:
        """As of `RunRecord`; rows that were changed since the run's end are a UserError."""
        table = super().metrics
        known = read_about(self.path).get("metrics") if (self.path / ABOUT).exists() else None
        if known is not None and self.metrics_digest(known[0]) != known[1]:
            raise damaged(self.metrics_csv)
        return table

    @functools.cached_property
    def trained(self) -> TrainedModel:
        """The trained model; `close` it where other programs want the store of local state.

        Raises:
            UserError: If the run has not ended, or has gone on since; is of another model or
                algorithm than those given, or is of a program of one's own whose algorithm, or
                model, is not given.
        """
        check_rounds(self.path)
        saved = read_saved_model(self.path)
        if "task" in self.config["options"]:
            pieces, trains = self._of_task(saved.about)
        else:
            pieces = self._of_program(saved.about)
            trains = pieces["model"]
        known = {name: saved.about[name] for name in ("batch_size", "seed", "round_number")}
        trained = TrainedModel(**{**known, **pieces}, weights=saved.weights)
        check_model(self.path, trained.model, saved)
        # Clients who are evaluated with another model have kept nothing of it.
        if not trained.algorithm.keeps or trained.model is not trains:
            return trained
        if saved.snapshot is not None:
            return dataclasses.replace(trained, kept_by=saved.snapshot.kept_by)
        path = self.path / LOCAL_STATE
        if not path.is_file():
            raise UserError(f"{self.path} has no {LOCAL_STATE}, which has what clients keep.")
        store = LocalStateStore.open(path, trained.model.local_variables)
        trained.resources.callback(store.close)
        if store.saved_round is None:
            store.close()
            raise damaged(path)
        return dataclasses.replace(
            trained, kept_by=lambda clients: store.unpack(store.read(clients))
        )

    def _of_program(self, about: Mapping[str, Any]) -> dict[str, Any]:
        options, given = self.config["options"], self._algorithm
        if given is None:
            raise UserError(
                f"{self.path} is the run of a program of one's own: give load_run its algorithm, "
                f"{one_line(options.get('algorithm'))}."
            )
        found = {"algorithm": given.name, "finetuning_phases": len(self._finetuning)}
        for name, value in found.items():
            if value != options.get(name):
                raise UserError(
                    f"{self.path} is a run with {name} = {one_line(repr(options.get(name)))}, not "
                    f"{value!r}."
                )
        model = self._model
        if model is None and about.get("model") is None:
            raise UserError(
                f"{self.path}: its model is not of Keras' own parts alone, so it is not in the "
                "folder: give load_run the model."
            )
        if model is None:
            try:
                model = read_model(about["model"])
            except Exception as error:  # Keras reads it, and complains in a dozen ways.
                raise UserError(
                    f"{self.path / ABOUT}: its model cannot be built: {one_line(error)}"
                ) from error
        model = given.prepare(model)
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
            "algorithm": given,
            "rebuilding": given.personalization(model),
            "finetuning": self._finetuning,
            "packing": packing,
            "together": EVALUATED_TOGETHER,
        }

    def _of_task(self, about: Mapping[str, Any]) -> tuple[dict[str, Any], PartitionedModel]:
        if self._model or self._algorithm or self._finetuning:
            raise UserError(
                f"{self.path} is the run of a binary, which knows its model and its algorithm: "
                "give load_run the folder alone."
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
            settled = task.settle(task.options(**options))
        except (TypeError, ValueError) as error:
            line = one_line(error).replace("--", "its option ")
            raise UserError(f"{self.config_json} is of another version: {line}") from error
        try:
            built = task.build(about["sizes"], settled)
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.path / ABOUT} does not fit {self.config_json}: no model can be built of it "
                f"({one_line(repr(error))})."
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
        folder: The folder, of a binary or of a program of one's own that gave it to `Trainer.fit`.
        model: The partitioned model that a program trained; not needed where all of its layers,
            its loss and its metrics are Keras' own and read no file, nor for a binary's run.
        algorithm: The algorithm of a program.
        finetuning: As of its `Trainer`.

    Raises:
        UserError: If it is no run's folder, or has files of several rounds, as of a finished run
            that goes on: `RunFolder.read` opens these.
    """
    path = RunFolder.read(folder).path
    check_rounds(path)
    return LoadedRun(path, model, algorithm, finetuning)

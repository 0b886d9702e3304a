"""A run's folder, opened again: what came of it, and its trained model."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.algorithm import Algorithm
from fedpersonal.atomic_files import write_json
from fedpersonal.errors import UserError
from fedpersonal.local_state.store import LocalStateStore
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.simulation.model_file import SavedModel, read_model, write_model
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.run_record import RunRecord
from fedpersonal.trained import LOCAL_STATE, Kept, TrainedModel

SIZES = "model.json"


def save_model(
    folder: RunRecord,
    trained: TrainedModel,
    sizes: Mapping[str, Any],
    names: Mapping[str, np.ndarray],
) -> None:
    """Writes what `load_run` needs beside the usual files.

    Args:
        folder: The run's folder.
        trained: The model after its last round; what clients keep is in their store.
        sizes: What a task builds the model of, such as its number of items.
        names: What the rows of tables stand for, by the input that picks them.
    """
    write_model(folder.path, SavedModel(trained.weights, names))
    about = {"sizes": sizes, "batch_size": trained.batch_size, "seed": trained.seed}
    write_json(folder.path / SIZES, about)


class LoadedRun(RunRecord):
    """A finished run: its files as a `RunRecord` reads them, and its model."""

    def __init__(
        self,
        path: os.PathLike,
        model: PartitionedModel | None = None,
        algorithm: Algorithm | None = None,
    ):
        """Use `load_run`."""
        super().__init__(path)
        self._given = model, algorithm

    @property
    def names(self) -> Mapping[str, np.ndarray]:
        """What the rows of the model's tables stand for, by the input that picks them."""
        return read_model(self.path).names

    @functools.cached_property
    def trained(self) -> TrainedModel:
        """The trained model; `close` it where other programs want the store of local state.

        Raises:
            UserError: If the run has not ended, or is of a program whose model is not given.
        """
        weights = read_model(self.path).weights
        try:
            about = json.loads((self.path / SIZES).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / SIZES} cannot be read ({error}).") from None
        model, algorithm = self._build(about["sizes"])
        resources = contextlib.ExitStack()
        kept_by = None
        if algorithm.keeps:
            store = LocalStateStore.open(self.path / LOCAL_STATE, model.local_variables)
            resources.callback(store.close)

            def kept_by(clients: Sequence[str]) -> Kept:
                return store.unpack(store.read(list(clients)))

        return TrainedModel(
            model,
            algorithm,
            weights,
            kept_by,
            batch_size=about["batch_size"],
            seed=about["seed"],
            resources=resources,
        )

    def _build(self, sizes: dict[str, Any]) -> tuple[PartitionedModel, Algorithm]:
        model, algorithm = self._given
        if model is not None and algorithm is not None:
            return model, algorithm
        options = dict(self.config["options"])
        if "task" not in options:
            raise UserError(
                f"{self.path} is the run of a program of one's own: give load_run its model and "
                "its algorithm."
            )
        task = importlib.import_module(options.pop("task")).TASK
        settled = task.settle(task.options(**options))
        model, algorithm, _ = task.build(types.SimpleNamespace(**sizes), settled)
        return model, algorithm


def load_run(
    folder: str | os.PathLike,
    *,
    model: PartitionedModel | None = None,
    algorithm: Algorithm | None = None,
) -> LoadedRun:
    """Opens the folder of a finished run.

    Args:
        folder: The folder, of a binary or of a program of one's own.
        model: The partitioned model that it trained; binaries' runs know theirs.
        algorithm: The algorithm, likewise.

    Raises:
        UserError: If it is no run's folder.
    """
    record = RunFolder.read(folder)
    return LoadedRun(record.path, model, algorithm)

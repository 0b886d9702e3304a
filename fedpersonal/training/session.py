"""The resources of a training: its folder, and the store of clients' local variables."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from fedpersonal.errors import TrainingError, UserError
from fedpersonal.model.variables import VariableSpec
from fedpersonal.runs.folder import RunFolder, remove_secret
from fedpersonal.runs.kept import Snapshot
from fedpersonal.runs.saved import save_model
from fedpersonal.runs.store import LOCAL_STATE, LocalStateStore
from fedpersonal.training.callbacks import BestModel
from fedpersonal.training.trained import TrainedModel


@dataclasses.dataclass(frozen=True, eq=False)
class Session:
    """The files of a training.

    Attributes:
        folder: The run's folder.
        is_ours: Whether the trainer has opened a folder that stays, and saves the model in it.
        is_program: Whether a program trains in a folder that stays. (The options of a command
            already describe its training completely.)
        resources: The resources that the trained model releases when it is closed.
    """

    folder: RunFolder
    is_ours: bool
    is_program: bool
    resources: contextlib.ExitStack

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        folder: str | os.PathLike | RunFolder | None,
        options: Mapping[str, Any],
        *,
        num_shards: int,
    ) -> Iterator[Session]:
        """Opens the files, and closes them when training ends or fails.

        Args:
            folder: The run's folder, its path, or None for one that is removed at the end.
            options: The options that identify the run, if the folder is opened here.
            num_shards: Number of shards of a cohort.

        Raises:
            UserError: If the folder holds another run, or cannot be written.
        """
        resources, opened = contextlib.ExitStack(), contextlib.ExitStack()
        is_temporary = folder is None
        is_ours = not is_temporary and not isinstance(folder, RunFolder)
        try:
            if folder is None:
                folder = resources.enter_context(tempfile.TemporaryDirectory())
            if not isinstance(folder, RunFolder):
                folder = RunFolder.open(folder, options, about={"num_shards": num_shards})
                opened.callback(folder.close)
            is_program = not is_temporary and "task" not in folder.config["options"]
            yield cls(folder, is_ours, is_program, resources)
            remove_secret(folder.path)
        except BaseException as error:
            resources.close()
            has_failed = isinstance(error, TrainingError)
            if has_failed and isinstance(folder, RunFolder) and folder.path.is_dir():
                _write_report(folder, failure=str(error))
            raise
        finally:
            opened.close()

    def open_store(self, variables: Sequence[VariableSpec]) -> LocalStateStore:
        """Opens the store of clients' kept values of these local variables."""
        store = LocalStateStore.open(self.folder.path / LOCAL_STATE, variables)
        self.resources.callback(store.close)
        return store

    def finish(
        self,
        trained: TrainedModel,
        best: BestModel | None,
        describe_privacy: Callable[[int], Mapping[str, Any]],
    ) -> TrainedModel:
        """Returns the model of the last round, or of the best one, and saves it if `is_ours`."""
        rounds, snapshot = trained.round_number, None
        folder = self.folder.path if self.is_ours else None
        trained = dataclasses.replace(trained, resources=self.resources, folder=folder)
        if best and not best.best_round:
            logging.warning(
                "%s was NaN in every round, so there is no best round; this is the model of the "
                "last round, %d.",
                best.metric,
                rounds,
            )
        elif best:
            local = best.kept["local"]
            snapshot = Snapshot(**local) if local else None
            trained = dataclasses.replace(
                trained,
                weights=best.kept["weights"],
                kept_by=snapshot.kept_by if snapshot else None,
                snapshot=snapshot,
                round_number=best.best_round,
            )
        if self.is_ours:
            about = {"privacy": describe_privacy(rounds)}
            save_model(self.folder, trained, about, snapshot=snapshot)
            _write_report(self.folder)
        return trained


def _write_report(folder: RunFolder, *, failure: str | None = None) -> None:
    """Writes the page of a run, without clients that were evaluated in an earlier round.

    The page of a failed run begins with the failure.
    """
    from fedpersonal.report.page import write_report

    with contextlib.suppress(*([UserError] if failure else [])):
        write_report(folder.path, failure=failure, only_last=True)

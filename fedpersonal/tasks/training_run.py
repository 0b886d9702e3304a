"""The rounds of a run: its process, the store beside it where clients keep something, its loop."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fedpersonal.local_state.rounds import Rounds, read_kept
from fedpersonal.local_state.store import LocalStateStore
from fedpersonal.options import Options
from fedpersonal.simulation.loop import LoopResult, run_rounds
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.store_checkpoints import StoreCheckpoints
from fedpersonal.tasks.federated_training import Training

STORE = "local_state.sqlite"


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A training in its folder.

    Attributes:
        training: The training process and its cohorts.
        run_folder: Where the run goes, or goes on.
        store: What clients keep, or None.
    """

    training: Training
    run_folder: RunFolder
    store: LocalStateStore | None

    def rounds(
        self,
        options: Options,
        evaluate: Callable[[Any], Mapping[str, float]],
        *,
        progress: bool = True,
    ) -> LoopResult:
        """Runs the rounds that are missing, evaluating states on the way.

        Raises:
            UserError: If training diverges, or the store cannot be used.
        """
        store = self.store
        return run_rounds(
            process=Rounds(self.training.process, store),
            cohort_fn=self.training.cohort_fn,
            run_folder=self.run_folder,
            total_rounds=options.total_rounds,
            evaluate_fn=lambda state, _: evaluate(state),
            rounds_per_eval=options.rounds_per_eval,
            rounds_per_checkpoint=options.rounds_per_checkpoint,
            progress=progress,
            saved_in=None if store is None else StoreCheckpoints(store),
        )

    def weights(self, state: Any) -> Mapping[str, np.ndarray]:
        """Returns a state's global variables by name."""
        return state.global_model_weights.trainable

    def kept_by(self, state: Any) -> Callable | None:
        """Returns what maps clients' names to what they have kept at a state."""
        if self.store is None:
            return None
        return lambda clients: read_kept(self.store, state, clients.tolist())


@contextlib.contextmanager
def open_run(training: Training, run_folder: RunFolder) -> Iterator[Run]:
    """Opens what the rounds of a run need.

    Args:
        training: The training process and its cohorts.
        run_folder: Where the store is, or will be.
    """
    if not training.kept_variables:
        yield Run(training, run_folder, None)
        return
    store = LocalStateStore.open(run_folder.path / STORE, training.kept_variables)
    with contextlib.closing(store):
        yield Run(training, run_folder, store)

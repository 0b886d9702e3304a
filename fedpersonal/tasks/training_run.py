"""The rounds of a run: its process, the store beside it where clients keep something, its loop."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from fedpersonal.evaluation.evaluate import ClientResults
from fedpersonal.local_state.rounds import Rounds, read_kept
from fedpersonal.local_state.store import LocalStateStore
from fedpersonal.simulation.loop import LoopResult, run_rounds
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.store_checkpoints import StoreCheckpoints
from fedpersonal.tasks.federated_training import Training

STORE = "local_state.sqlite"


class RoundOptions(Protocol):
    """How many rounds there are, and what happens between them; any experiment's options."""

    total_rounds: int
    rounds_per_eval: int
    rounds_per_checkpoint: int


@dataclasses.dataclass(frozen=True)
class Trained:
    """What the rounds have led to.

    Attributes:
        loop: The last state, and the rounds' times.
        seen: What an evaluation takes of that state: the weights and, where clients keep local
            variables, theirs.
    """

    loop: LoopResult
    seen: tuple


def train(
    training: Training,
    run_folder: RunFolder,
    options: RoundOptions,
    *,
    clients: np.ndarray | None = None,
    evaluate: Callable[..., ClientResults] | None = None,
    progress: bool = True,
) -> Trained:
    """Runs the rounds that are missing, evaluating on the way.

    Args:
        training: The training process and its cohorts.
        run_folder: Where the run goes, or goes on.
        options: How many rounds, and when they are evaluated and saved.
        clients: The names of the clients whose local variables are seen, where they keep them.
        evaluate: What is called with what is seen of a state.
        progress: Whether to report progress on stderr.

    Raises:
        UserError: If training diverges, or the store cannot be used.
    """
    with open_run(training, run_folder) as (rounds, saved_in, seen_of):

        def evaluate_state(state: Any, round_number: int) -> Mapping[str, float]:
            del round_number
            return evaluate(*seen_of(state, clients)).overall()

        loop = run_rounds(
            process=rounds,
            cohort_fn=training.cohort_fn,
            run_folder=run_folder,
            total_rounds=options.total_rounds,
            evaluate_fn=evaluate and evaluate_state,
            rounds_per_eval=options.rounds_per_eval,
            rounds_per_checkpoint=options.rounds_per_checkpoint,
            progress=progress,
            saved_in=saved_in,
        )
        return Trained(loop, seen_of(loop.state, clients))


@contextlib.contextmanager
def open_run(
    training: Training, run_folder: RunFolder
) -> Iterator[tuple[Rounds, Any, Callable[[Any, np.ndarray | None], tuple]]]:
    """Opens what the rounds of a run need.

    Args:
        training: The training process and its cohorts.
        run_folder: Where the store is, or will be.

    Yields:
        The rounds; where its checkpoints are, or None for the usual place; and a function
        of a state and of clients' names that returns what is seen of the state, as in `Trained`.
    """

    def weights_of(state: Any, clients: np.ndarray | None) -> tuple:
        del clients
        return (state.global_model_weights.trainable,)

    if not training.kept_variables:
        yield Rounds(training.process), None, weights_of
        return
    store = LocalStateStore.open(run_folder.path / STORE, training.kept_variables)

    def weights_and_kept(state: Any, clients: np.ndarray | None) -> tuple:
        return (*weights_of(state, clients), read_kept(store, state, clients.tolist()))

    try:
        yield Rounds(training.process, store), StoreCheckpoints(store), weights_and_kept
    finally:
        store.close()

"""The process of a run, and the store beside it where clients keep something."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedpersonal.partition import PartitionedModel
from fedpersonal.private_store import PrivateStore
from fedpersonal.simulation.private_rounds import PrivateProcess, StoreCheckpoints, read_kept
from fedpersonal.simulation.run_folder import RunFolder

STORE = "private.sqlite"


@contextlib.contextmanager
def open_run(
    process: Any, model: PartitionedModel, run_folder: RunFolder, *, keeps: bool
) -> Iterator[tuple[Any, Any, Callable[[Any, np.ndarray], tuple]]]:
    """Opens what a run needs beside its experiment.

    Args:
        process: The training process; one to be joined to a store if clients keep something.
        model: The partitioned model.
        run_folder: Where the store is, or will be.
        keeps: Whether clients keep their local variables.

    Yields:
        The process to run; where its checkpoints are, or None for the usual place; and a function
        of a state and of clients' names that returns what an evaluation takes of the state: the
        weights and, where they are kept, these clients' local variables.
    """

    def weights_of(state: Any, client_ids: np.ndarray) -> tuple:
        del client_ids
        return (state.global_model_weights.trainable,)

    if not keeps:
        yield process, None, weights_of
        return
    store = PrivateStore.open(run_folder.path / STORE, model.local_variables)

    def weights_and_kept(state: Any, client_ids: np.ndarray) -> tuple:
        return (*weights_of(state, client_ids), read_kept(store, state, client_ids.tolist()))

    try:
        yield PrivateProcess(process, store), StoreCheckpoints(store), weights_and_kept
    finally:
        store.close()

"""What the hand-written rivals take: FedRecon's options, and a cohort as plain arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpersonal.data.batching import pad_batches
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.touched_rows import touched_rows

# What a user's vector starts from, so that all sides start alike.
USER_START = 0.1


class Steps(NamedTuple):
    """A client's work: SGD on plain matrix factorization, support and query batches in turn.

    Attributes:
        rebuilding_rate: Learning rate of the user's vector.
        client_rate: That of the items' vectors.
        epochs: Passes over the support batches.
        max_rebuilding: Bound on the steps of all passes.
        max_updates: Bound on the steps over the query batches.
    """

    rebuilding_rate: float
    client_rate: float
    epochs: int
    max_rebuilding: int
    max_updates: int


class PaddedCohort(NamedTuple):
    """The clients of a round.

    Attributes:
        rows: int32 (C, R): the items that each client has rated, then 0.
        places: int32 (C, N, B): where among its `rows` an example's item is.
        ratings: float32 (C, N, B).
        mask: float32 (C, N, B): 1 for an example.
        num_batches: int32 (C,).
    """

    rows: np.ndarray
    places: np.ndarray
    ratings: np.ndarray
    mask: np.ndarray
    num_batches: np.ndarray


def pad_cohort(train: ClientDataset, indices: np.ndarray, *, batch_size: int) -> PaddedCohort:
    """Pads clients' ratings; every cohort of a data set has the same shapes."""
    most = int(train.counts.max())
    batches = pad_batches(train, indices, batch_size=batch_size)
    missing = -(-most // batch_size) - batches.mask.shape[1]

    def longer(array: np.ndarray) -> np.ndarray:
        return np.pad(array, ((0, 0), (0, missing), (0, 0)))

    mask = longer(batches.mask)
    rows, places = touched_rows(longer(batches.features["item"]), mask)
    return PaddedCohort(
        rows=np.pad(rows, ((0, 0), (0, most - rows.shape[1]))),
        places=places,
        ratings=longer(batches.labels),
        mask=mask,
        num_batches=mask.any(-1).sum(-1).astype(np.int32),
    )

"""Clients of unequal sizes as rectangular arrays of batches, with a mask of what is real."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from fedpersonal.data.checks import check_count
from fedpersonal.data.client_dataset import ClientDataset


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedBatches:
    """The batches of some clients; where `mask` is 0 the other arrays hold zeros (or "").

    Attributes:
        features: Columns by name, each (clients, num_batches, batch_size, ...).
        labels: (clients, num_batches, batch_size, ...).
        mask: (clients, num_batches, batch_size) float32: 1 for an example, 0 for padding.
    """

    features: Mapping[str, np.ndarray]
    labels: np.ndarray
    mask: np.ndarray


def pad_batches(
    dataset: ClientDataset, client_indices: Sequence[int] | np.ndarray, *, batch_size: int
) -> PaddedBatches:
    """Cuts each client's examples, in order, into batches and pads all clients alike.

    Args:
        dataset: All clients' examples.
        client_indices: (clients,) integers in [0, dataset.num_clients), repeats allowed.
        batch_size: Examples in a batch, >= 1; a client's last batch may hold fewer. All clients get
            as many batches as one of them needs, at least 1.
    """
    batch_size = check_count("batch_size", batch_size, minimum=1)
    clients = dataset.check_client_indices(client_indices)
    starts = dataset.offsets[clients]
    counts = dataset.offsets[clients + 1] - starts
    num_batches = max(1, -(-int(counts.max(initial=0)) // batch_size))
    positions = np.arange(num_batches * batch_size)
    real = positions < counts[:, None]
    rows = (starts[:, None] + positions)[real]
    shape = (clients.size, num_batches, batch_size)

    def pad(column: np.ndarray) -> np.ndarray:
        padded = np.zeros(real.shape + column.shape[1:], column.dtype)
        if column.dtype == object:
            padded.fill("")  # An object column holds text, and 0 is no text.
        padded[real] = column[rows]
        return padded.reshape(shape + column.shape[1:])

    return PaddedBatches(
        {name: pad(column) for name, column in dataset.features.items()},
        labels=pad(dataset.labels),
        mask=real.astype(np.float32).reshape(shape),
    )

"""Batches of clients of unequal sizes: padding, the rows of tables in use, drawn examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import check_count
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError


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


_MAX_ID = np.iinfo(np.int32).max


def touched_rows(ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the distinct ids of each client, and where each of its examples finds its own.

    With these a client looks its examples up in a table of the rows it touches, not the whole:
    `table[rows[c]][positions[c]]` equals `table[ids[c]]` wherever the mask is not 0.

    Args:
        ids: (clients, num_batches, batch_size) integers in [0, 2**31 - 1], where the mask is not 0.
        mask: The same shape, 1 or True for an example, 0 or False for padding.

    Returns:
        rows: (clients, num_rows) int32, a client's distinct ids ascending, then 0 as padding.
        positions: Of the shape of `ids`, int32 indices into the client's rows; 0 where the mask is
            0.
    """
    ids, real = np.asarray(ids), np.asarray(mask).astype(bool)
    if ids.ndim != 3 or ids.dtype.kind not in "iu" or ids.shape != real.shape:
        raise UserError(
            "ids and mask must both have shape (clients, num_batches, batch_size), ids integers;"
            f" got {ids.dtype} of shape {ids.shape} and a mask of shape {real.shape}"
        )
    num_clients, num_slots = ids.shape[0], ids.shape[1] * ids.shape[2]
    wrong = real & ((ids < 0) | (ids > _MAX_ID))
    if wrong.any():
        raise UserError(f"ids must be in [0, {_MAX_ID}], got {ids[wrong][0]}")

    # Sorting id and slot as one number is several times faster than an argsort of the ids;
    # padding sorts behind every id.
    keys = np.where(real, ids.astype(np.int64), _MAX_ID + 1).reshape(num_clients, num_slots)
    keys = keys * num_slots + np.arange(num_slots)
    keys.sort(axis=1)
    sorted_ids, slots = np.divmod(keys, max(num_slots, 1))
    sorted_real = sorted_ids <= _MAX_ID
    first = sorted_real.copy()
    first[:, 1:] &= sorted_ids[:, 1:] != sorted_ids[:, :-1]
    touched = first.sum(axis=1)

    num_rows = max(1, int(touched.max(initial=0)))
    rows = np.zeros((num_clients, num_rows), np.int32)
    rows[np.arange(num_rows) < touched[:, None]] = sorted_ids[first]
    rank = np.where(sorted_real, np.cumsum(first, axis=1) - 1, 0)
    positions = np.empty((num_clients, num_slots), np.int32)
    np.put_along_axis(positions, slots, rank.astype(np.int32), axis=1)
    return rows, positions.reshape(ids.shape)


def draw_examples(
    dataset: ClientDataset,
    client_indices: Sequence[int] | np.ndarray,
    *,
    count: int,
    seed: int,
    round_number: int,
) -> ClientDataset:
    """Draws examples of some clients, in random order and without repeats.

    Args:
        dataset: All clients' examples.
        client_indices: (n,) distinct integers in [0, num_clients).
        count: How many a client draws, >= 1; one who has fewer takes all.
        seed: >= 0. A client's draw depends on it, on the round and on its index alone.
        round_number: >= 0.

    Returns:
        A dataset of these clients, in this order.
    """
    check_count("count", count, minimum=1)
    indices = dataset.check_client_indices(client_indices)
    rows = [np.zeros(0, np.int64)]
    for index, size in zip(indices.tolist(), dataset.counts[indices].tolist()):
        rng = generator(Purpose.EXAMPLES, seed, round_number=round_number, client=index)
        rows.append(dataset.offsets[index] + rng.choice(size, min(count, size), replace=False))
    offsets = np.cumsum(list(map(len, rows)))
    return dataset.take(np.concatenate(rows), dataset.client_ids[indices], offsets)

"""The rows of a large lookup table that each client's examples touch."""

from __future__ import annotations

import numpy as np

from fedpersonal.errors import UserError

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

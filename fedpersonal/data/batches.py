"""Batches of clients of unequal sizes: padding, used rows of tables, sampled examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import check_count
from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedBatches:
    """The padded batches of clients; labels are zeros (or "") where `mask` is 0.

    Attributes:
        features: Columns by name, each (clients, num_batches, batch_size, ...). A short batch is
            padded by its first example, because a model may map zeros to NaN. A batch without
            examples holds zeros (or "").
        labels: (clients, num_batches, batch_size, ...).
        mask: (clients, num_batches, batch_size) float32: 1 for an example, 0 for padding.
    """

    features: Mapping[str, np.ndarray]
    labels: np.ndarray
    mask: np.ndarray


def pad_batches(
    dataset: ClientDataset,
    client_indices: Sequence[int] | np.ndarray,
    *,
    batch_size: int,
    clients: int | None = None,
    round_up: Callable[[int], int] = int,
    orders: Sequence[np.ndarray] | None = None,
) -> PaddedBatches:
    """Cuts each client's examples, in order, into batches, and pads all clients to one shape.

    Args:
        dataset: All clients' examples.
        client_indices: Integers in [0, dataset.num_clients), repeats allowed.
        batch_size: Examples in a batch, >= 1; a client's last batch may hold fewer. All clients get
            the number of batches that the largest client needs, at least 1.
        clients: The number of clients in the result; further ones have no examples.
        round_up: Maps the required number of batches to the number in the result.
        orders: For each of `client_indices`, the index of its example at each place; None for the
            data's order.
    """
    batch_size = check_count("batch_size", batch_size, minimum=1)
    chosen = dataset.check_client_indices(client_indices)
    starts, counts = np.zeros((2, chosen.size if clients is None else clients, 1), np.int64)
    starts[: chosen.size, 0] = dataset.offsets[chosen]
    counts[: chosen.size, 0] = dataset.offsets[chosen + 1] - dataset.offsets[chosen]
    num_batches = round_up(max(1, -(-int(counts.max(initial=0)) // batch_size)))
    place = np.arange(num_batches * batch_size)
    first = place - place % batch_size
    is_real, has_first = place < counts, first < counts
    places = np.where(is_real, place, first)
    for row, order in zip(places, orders or ()):
        end = -(-len(order) // batch_size) * batch_size
        row[:end] = order[row[:end]]
    rows = np.where(has_first, starts + places, 0)
    shape = (len(counts), num_batches, batch_size)

    def pad(column: np.ndarray, is_filled: np.ndarray) -> np.ndarray:
        empty = "" if column.dtype == object else 0  # An object column holds text.
        if not len(column):
            return np.full(shape + column.shape[1:], empty, column.dtype)
        padded = column[rows]
        padded[~is_filled] = empty
        return padded.reshape(shape + column.shape[1:])

    return PaddedBatches(
        {name: pad(column, has_first) for name, column in dataset.features.items()},
        labels=pad(dataset.labels, is_real),
        mask=is_real.astype(np.float32).reshape(shape),
    )


_MAX_ID = np.iinfo(np.int32).max


def touched_rows(
    ids: np.ndarray, mask: np.ndarray, *, round_up: Callable[[int], int] = int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the distinct ids of each client, and the position of each example's id among them.

    With both, a client looks its examples up in a table of its touched rows instead of all rows:
    `table[rows[c]][positions[c]]` equals `table[ids[c]]` wherever the mask is not 0.

    Args:
        ids: (clients, num_batches, batch_size) integers, in [0, 2**31 - 1] where the mask is not 0.
        mask: The same shape, 1 or True for an example, 0 or False for padding.
        round_up: Maps the largest number of rows of a client to the number in the result.

    Returns:
        rows: (clients, num_rows) int32, a client's distinct ids ascending, then 0 as padding.
        positions: int32 indices into the client's rows, in the shape of `ids`; 0 where the mask is
            0.
    """
    ids, real = np.asarray(ids), np.asarray(mask).astype(bool)
    if ids.ndim != 3 or ids.dtype.kind not in "iu" or ids.shape != real.shape:
        raise UserError(
            "ids and mask must both have shape (clients, num_batches, batch_size), ids integers;"
            f" got {ids.dtype} of shape {ids.shape} and a mask of shape {real.shape}"
        )
    chosen = ids[real]
    wrong = (chosen < 0) | (chosen > _MAX_ID)
    if wrong.any():
        raise UserError(f"ids must be in [0, {_MAX_ID}], got {chosen[wrong][0]}")

    clients = np.repeat(np.arange(len(ids)), real.sum(axis=(1, 2)))
    row_clients, distinct, places = _distinct(clients, chosen)
    touched = np.bincount(row_clients, minlength=len(ids))
    ranks = np.arange(len(distinct)) - (np.cumsum(touched) - touched)[row_clients]

    rows = np.zeros((len(ids), round_up(max(1, touched.max(initial=0)))), np.int32)
    rows[row_clients, ranks] = distinct
    positions = np.zeros(ids.shape, np.int32)
    positions[real] = ranks[places]
    return rows, positions


def _distinct(clients: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the client of each distinct id, the distinct ids, and each id's place among them.

    Args:
        clients: (n,) ascending.
        ids: (n,) in [0, 2**31 - 1].
    """
    size = int(ids.max(initial=0)) + 1
    num_clients = int(clients[-1]) + 1 if len(clients) else 0
    if num_clients * size <= 16 * len(ids):
        # Filling a table of the clients' ids is faster than sorting the ids.
        keys = clients * size + ids
        has = np.zeros(num_clients * size, bool)
        has[keys] = True
        row_clients, distinct = np.divmod(np.flatnonzero(has), size)
        return row_clients, distinct, np.cumsum(has, dtype=np.int32)[keys] - 1
    # One number for a client and an id: sorting puts a client's ids next to each other.
    keys = clients * (_MAX_ID + 1) + ids
    order = np.argsort(keys)
    keys = keys[order]
    is_first = np.diff(keys, prepend=-1) > 0
    row_clients, distinct = np.divmod(keys[is_first], _MAX_ID + 1)
    places = np.empty(len(keys), np.int64)
    places[order] = np.cumsum(is_first) - 1
    return row_clients, distinct, places


def sample_examples(
    dataset: ClientDataset,
    client_indices: Sequence[int] | np.ndarray,
    *,
    count: int,
    seed: int,
    round_number: int,
) -> ClientDataset:
    """Samples examples of clients, in random order and without repeats.

    Args:
        dataset: All clients' examples.
        client_indices: (n,) distinct integers in [0, num_clients).
        count: The number of examples a client, >= 1; all, if a client has fewer.
        seed: >= 0. A client's sample depends only on the seed, the round and the client's index.
        round_number: >= 0.

    Returns:
        A dataset of these clients, in the order of `client_indices`.
    """
    check_count("count", count, minimum=1)
    indices = dataset.check_client_indices(client_indices)
    rows = [np.zeros(0, np.int64)]
    for index, size in zip(indices.tolist(), dataset.counts[indices].tolist()):
        rng = generator(Purpose.EXAMPLES, seed, round_number=round_number, client=index)
        rows.append(dataset.offsets[index] + rng.choice(size, min(count, size), replace=False))
    offsets = np.cumsum(list(map(len, rows)))
    return dataset.take(np.concatenate(rows), dataset.client_ids[indices], offsets)

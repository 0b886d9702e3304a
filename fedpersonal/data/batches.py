"""Batches of clients of unequal sizes: padding, the rows of tables in use, drawn examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import check_count
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedBatches:
    """The batches of some clients; where `mask` is 0 labels are zeros (or "").

    Attributes:
        features: Columns by name, each (clients, num_batches, batch_size, ...). Where a batch ends
            early its first example is repeated: what a model makes of zeros may be no number. A
            batch without examples holds zeros (or "").
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
    """Cuts each client's examples, in order, into batches and pads all clients alike.

    Args:
        dataset: All clients' examples.
        client_indices: Integers in [0, dataset.num_clients), repeats allowed.
        batch_size: Examples in a batch, >= 1; a client's last batch may hold fewer. All clients get
            as many batches as one of them needs, at least 1.
        clients: How many clients there is room for; those beyond `client_indices` have no examples.
        round_up: Maps the number of batches that are needed to how many there are.
        orders: For each of `client_indices`, which of its examples it takes at each place; None for
            the data's order.
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
    taken = np.where(is_real, place, first)
    for row, order in zip(taken, orders or ()):
        end = -(-len(order) // batch_size) * batch_size
        row[:end] = order[row[:end]]
    rows = np.where(has_first, starts + taken, 0)
    shape = (len(counts), num_batches, batch_size)

    def pad(column: np.ndarray, is_filled: np.ndarray) -> np.ndarray:
        nothing = "" if column.dtype == object else 0  # An object column holds text.
        if not len(column):
            return np.full(shape + column.shape[1:], nothing, column.dtype)
        padded = column[rows]
        padded[~is_filled] = nothing
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
    """Finds the distinct ids of each client, and where each of its examples finds its own.

    With these a client looks its examples up in a table of the rows it touches, not the whole:
    `table[rows[c]][positions[c]]` equals `table[ids[c]]` wherever the mask is not 0.

    Args:
        ids: (clients, num_batches, batch_size) integers in [0, 2**31 - 1], where the mask is not 0.
        mask: The same shape, 1 or True for an example, 0 or False for padding.
        round_up: Maps how many rows the client with the most needs to how many there are.

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
    chosen = ids[real]
    wrong = (chosen < 0) | (chosen > _MAX_ID)
    if wrong.any():
        raise UserError(f"ids must be in [0, {_MAX_ID}], got {chosen[wrong][0]}")

    clients = np.repeat(np.arange(len(ids)), real.sum(axis=(1, 2)))
    owners, distinct, places = _distinct(clients, chosen)
    touched = np.bincount(owners, minlength=len(ids))
    ranks = np.arange(len(distinct)) - (np.cumsum(touched) - touched)[owners]

    rows = np.zeros((len(ids), round_up(max(1, touched.max(initial=0)))), np.int32)
    rows[owners, ranks] = distinct
    positions = np.zeros(ids.shape, np.int32)
    positions[real] = ranks[places]
    return rows, positions


def _distinct(clients: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns each client's distinct ids, whose they are, and where among them each id stands.

    Args:
        clients: (n,) ascending.
        ids: (n,) in [0, 2**31 - 1].
    """
    size = int(ids.max(initial=0)) + 1
    num_clients = int(clients[-1]) + 1 if len(clients) else 0
    if num_clients * size <= 16 * len(ids):
        # A table of what each client has is quicker to fill than as many ids are to sort.
        keys = clients * size + ids
        has = np.zeros(num_clients * size, bool)
        has[keys] = True
        owners, distinct = np.divmod(np.flatnonzero(has), size)
        return owners, distinct, np.cumsum(has, dtype=np.int32)[keys] - 1
    # A client and an id as one number: sorted, each client's ids follow each other.
    keys = clients * (_MAX_ID + 1) + ids
    order = np.argsort(keys)
    keys = keys[order]
    is_first = np.diff(keys, prepend=-1) > 0
    owners, distinct = np.divmod(keys[is_first], _MAX_ID + 1)
    places = np.empty(len(keys), np.int64)
    places[order] = np.cumsum(is_first) - 1
    return owners, distinct, places


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

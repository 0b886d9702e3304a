"""The few examples that clients draw for one round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpersonal.data.checks import check_count
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.draws import Purpose, generator


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

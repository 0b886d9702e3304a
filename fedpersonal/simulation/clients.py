"""Whose examples a round takes: some clients', or everybody's as if they were one client's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.example_sampling import draw_examples
from fedpersonal.data.loaded import fingerprint
from fedpersonal.draws import Purpose, generator

# Round number to clients, and which of them take part.
ClientsOfRound = Callable[[int], tuple[ClientDataset, np.ndarray]]


class ReadWhenDrawn(Protocol):
    """Clients that are read when they are drawn, as they are too many to be held in memory."""

    @property
    def num_clients(self) -> int:
        """How many clients there are."""

    @property
    def client_ids(self) -> np.ndarray:
        """(num_clients,) names."""

    def subset(self, indices: np.ndarray) -> ClientDataset:
        """Returns some of the clients, in this order."""


def describe_clients(clients: ClientDataset | ReadWhenDrawn) -> dict[str, int | str]:
    """Returns what tells clients from others: `clients`, `examples`, `columns` and `values`.

    The last is a hash of all numbers and texts: 20 ms for a million ratings. Clients that are read
    when they are drawn have their number and a hash of their names.
    """
    if not isinstance(clients, ClientDataset):
        names = fingerprint({"client_ids": np.asarray(clients.client_ids, object)})
        return {"clients": clients.num_clients, "names": names}
    columns = {**clients.features, "labels": clients.labels}
    kinds = [f"{n} {c.dtype.name} {list(c.shape[1:])}" for n, c in sorted(columns.items())]
    return {
        "clients": clients.num_clients,
        "examples": clients.num_examples,
        "columns": ", ".join(kinds),
        "values": clients.fingerprint(),
    }


def drawn_clients(
    train: ClientDataset | ReadWhenDrawn,
    sample: Callable[[int], np.ndarray],
    *,
    examples_per_round: int | None = None,
    seed: int = 0,
) -> ClientsOfRound:
    """Returns what finds the clients of a round.

    Args:
        train: The training clients.
        sample: Round number to the indices of the clients that take part.
        examples_per_round: How many examples a client draws for a round by `seed`; None for all.
        seed: Seed of these draws.
    """

    def clients_of(round_number: int) -> tuple[ClientDataset, np.ndarray]:
        indices = sample(round_number)
        everybody = np.arange(len(indices))
        if isinstance(train, ClientDataset):
            dataset, indices = train.in_round(round_number, indices)
        else:
            dataset, indices = train.subset(indices), everybody
        if examples_per_round is None:
            return dataset, indices
        drawn = draw_examples(
            dataset, indices, count=examples_per_round, seed=seed, round_number=round_number
        )
        return drawn, everybody

    return clients_of


def pooled_clients(
    train: ClientDataset, *, rounds_per_epoch: int = 1, seed: int = 0
) -> ClientsOfRound:
    """Returns what makes one client of everybody's examples, shuffled in each epoch by the seed.

    An epoch, in which each example is seen once, is so many rounds.
    """
    size = math.ceil(train.num_examples / rounds_per_epoch)

    def clients_of(round_number: int) -> tuple[ClientDataset, np.ndarray]:
        epoch, part = divmod(round_number - 1, rounds_per_epoch)
        examples, _ = train.in_round(1 + epoch, np.arange(train.num_clients))
        rng = generator(Purpose.EPOCH, seed, round_number=1 + epoch)
        order = rng.permutation(train.num_examples)
        chosen = order[part * size : (part + 1) * size]
        pooled = ClientDataset(
            client_ids=np.array(["everyone"], object),
            offsets=np.array([0, len(chosen)]),
            features={k: v[chosen] for k, v in examples.features.items()},
            labels=examples.labels[chosen],
        )
        return pooled, np.arange(1)

    return clients_of

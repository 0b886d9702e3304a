"""Clients of a training: their sampling for rounds, and their examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from fedpersonal import former
from fedpersonal.data.batches import sample_examples
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import fingerprint
from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator

# A data set, and the indices of the clients in it that take part.
Clients = tuple[ClientDataset, np.ndarray]
ClientsOfRound = Callable[[int], Clients]


class LazyClients(Protocol):
    """Clients that are read when they are sampled, because memory cannot hold all."""

    @property
    def num_clients(self) -> int:
        """Number of clients."""

    @property
    def client_ids(self) -> np.ndarray:
        """(num_clients,) names."""

    def subset(self, indices: np.ndarray) -> ClientDataset:
        """Returns the clients with these indices, in this order."""


def describe_clients(clients: ClientDataset | LazyClients) -> dict[str, int | str]:
    """Returns a description that identifies clients: `clients`, `examples`, `columns`, `values`.

    The last is a hash of all numbers and texts: 20 ms for a million ratings. Clients that are read
    when they are sampled are described by their number and a hash of their names.
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


def sampled_clients(
    train: ClientDataset | LazyClients,
    indices: np.ndarray,
    *,
    round_number: int,
    examples_per_round: int | None = None,
    seed: int = 0,
) -> Clients:
    """Returns the clients of a round, with the examples that they sample.

    Args:
        train: The training clients.
        indices: Indices of the clients that take part.
        round_number: The round.
        examples_per_round: Number of examples that a client samples for a round; None for all.
        seed: Seed of the sampling of examples.
    """
    places = np.arange(len(indices))
    if isinstance(train, ClientDataset):
        dataset, indices = train.in_round(round_number, indices)
    else:
        dataset, indices = train.subset(indices), places
    if examples_per_round is None:
        return dataset, indices
    sampled = sample_examples(
        dataset, indices, count=examples_per_round, seed=seed, round_number=round_number
    )
    return sampled, places


def pooled_clients(
    train: ClientDataset, *, rounds_per_epoch: int = 1, seed: int = 0
) -> ClientsOfRound:
    """Returns a function from round to one client with a part of all clients' examples.

    The examples are shuffled in each epoch by the seed. An epoch, in which each example is used
    once, takes `rounds_per_epoch` rounds.
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


SAMPLINGS = ("fixed", "poisson")


class ClientSampler:
    """Samples distinct clients, each with the same probability, for each round.

    The sample is a pure function of the seed and the round number: a run that is resumed, or that
    runs its rounds in another order, has the same clients.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        clients_per_round: int,
        seed: int,
        dropout_rate: float = 0.0,
        sampling: str = "fixed",
    ):
        """Checks and stores the options.

        Args:
            num_clients: Number of clients.
            clients_per_round: Number of clients sampled for a round; with Poisson sampling, on
                average.
            seed: A non-negative integer.
            dropout_rate: The probability of each sampled client to drop out of its round,
                independently of the others. With fixed sampling, at least one client stays.
            sampling: `fixed`: the same number of clients in each round; or `poisson`: each client
                independently, with the same probability, so that rounds differ in size and may be
                empty.

        Raises:
            UserError: An option is out of range.
        """
        if num_clients < 1:
            raise UserError(f"num_clients is {num_clients}; at least one client is needed.")
        if not 1 <= clients_per_round <= num_clients:
            raise UserError(
                f"clients_per_round is {clients_per_round}; it must be between 1 and the number "
                f"of clients, {num_clients}."
            )
        if seed < 0:
            raise UserError(f"seed is {seed}; it must not be negative.")
        if not 0.0 <= dropout_rate < 1.0:
            raise UserError(f"dropout_rate is {dropout_rate}; it must be at least 0 and below 1.")
        if sampling not in SAMPLINGS:
            raise UserError(f"sampling is {sampling!r}; it must be one of {', '.join(SAMPLINGS)}.")
        self._sizes = num_clients, clients_per_round
        self._is_poisson = sampling == "poisson"
        self._seed, self._dropout_rate = seed, dropout_rate

    def sample(self, round_number: int) -> np.ndarray:
        """Returns the indices of the clients of a round >= 0, in the order of sampling."""
        sampled, stays = self.sample_with_dropouts(round_number)
        return sampled[stays]

    def most_rounds(self, rounds: int) -> np.ndarray:
        """Returns, by n, the largest number of the first n rounds in which one client is sampled.

        int64 (rounds + 1,). Clients that drop out count as sampled.
        """
        counts, most = np.zeros(self._sizes[0], np.int64), np.zeros(rounds + 1, np.int64)
        for number in range(1, rounds + 1):
            sampled, _ = self.sample_with_dropouts(number)
            counts[sampled] += 1
            most[number] = max(most[number - 1], counts[sampled].max(initial=0))
        return most

    draw = former.FormerAttribute("sample_with_dropouts")

    def sample_with_dropouts(self, round_number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the indices of the sampled clients, and a bool for each: it does not drop out."""
        random = generator(Purpose.ROUND_CLIENTS, self._seed, round_number=round_number)
        num_clients, count = self._sizes
        if self._is_poisson:
            count = random.binomial(num_clients, count / num_clients)
        sampled = random.choice(num_clients, count, replace=False)
        if self._dropout_rate == 0.0:
            return sampled, np.ones(count, bool)
        # One uniform number per client; the client with the largest stays in any case.
        luck = random.random(len(sampled))
        stays = luck >= self._dropout_rate
        if not self._is_poisson:
            stays |= luck == luck.max()
        return sampled, stays

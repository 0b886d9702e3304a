"""Which clients a round draws, and whose examples it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from fedpersonal.data.batches import draw_examples
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import fingerprint
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError

# Clients, and which of them take part.
Clients = tuple[ClientDataset, np.ndarray]
ClientsOfRound = Callable[[int], Clients]


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
    indices: np.ndarray,
    *,
    round_number: int,
    examples_per_round: int | None = None,
    seed: int = 0,
) -> Clients:
    """Returns the clients of a round.

    Args:
        train: The training clients.
        indices: Those that take part.
        round_number: The round.
        examples_per_round: How many examples a client draws for a round by `seed`; None for all.
        seed: Seed of these draws.
    """
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


SAMPLINGS = ("fixed", "poisson")


class ClientSampler:
    """Draws distinct clients, each with the same chance, for each round.

    The draw is a pure function of the seed and the round number: a run that is resumed, or that
    asks for its rounds in another order, meets the same clients.
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
        """Checks and keeps the options.

        Args:
            num_clients: How many clients there are.
            clients_per_round: How many of them are drawn for a round; with Poisson sampling, on
                average.
            seed: A non-negative integer.
            dropout_rate: The chance of each drawn client to drop out of its round, independently
                of the others. One that would have left the round empty stays, unless sampling is
                Poisson's.
            sampling: `fixed`: so many clients in each round; or `poisson`: each client by itself,
                with the same chance, so that rounds differ in size and may be empty.

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
        """Returns the indices of the clients of a round >= 0, in the order of their draw."""
        drawn, stays = self.draw(round_number)
        return drawn[stays]

    def most_rounds(self, rounds: int) -> np.ndarray:
        """Returns in how many of the first n rounds one client is drawn at most, by n.

        int64 (rounds + 1,). Clients that drop out were drawn, too.
        """
        counts, most = np.zeros(self._sizes[0], np.int64), np.zeros(rounds + 1, np.int64)
        for number in range(1, rounds + 1):
            drawn, _ = self.draw(number)
            counts[drawn] += 1
            most[number] = max(most[number - 1], counts[drawn].max(initial=0))
        return most

    def draw(self, round_number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the indices of the clients drawn, and which of them, bool, do not drop out."""
        random = generator(Purpose.ROUND_CLIENTS, self._seed, round_number=round_number)
        num_clients, count = self._sizes
        if self._is_poisson:
            count = random.binomial(num_clients, count / num_clients)
        drawn = random.choice(num_clients, count, replace=False)
        if self._dropout_rate == 0.0:
            return drawn, np.ones(count, bool)
        # One uniform number a client: whoever drew the largest is the last to leave.
        luck = random.random(len(drawn))
        stays = luck >= self._dropout_rate
        if not self._is_poisson:
            stays |= luck == luck.max()
        return drawn, stays

"""The clients that take part in each round of a training, and their examples."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from absl import logging

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.randomness import Purpose, generator
from fedpersonal.training.clients import (
    Clients,
    ClientSampler,
    ClientsOfRound,
    LazyClients,
    sampled_clients,
)
from fedpersonal.training.participation import ClientClock, Outcome, Participation, count_work


class ClientSampling:
    """The clients of all rounds: chosen by a function, or sampled at random.

    Sampling is a pure function of the seed and the round number. At the end of a round, each
    sampled client gets a uniform number of `Purpose.ROUND_END`. Its update is lost if the number is
    below `lost_update_rate`.

    Attributes:
        train: All training clients.
        num_clients: Number of clients that may take part.
        clients_per_round: Number of clients in a round, on average if it is random.
        capacity: Number of clients for which shards have room.
        is_random: Whether clients are sampled.
        keeps_lost: Whether clients whose updates are lost keep their trained local variables.
        options: The options of the sampling, for JSON.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        train: ClientDataset | LazyClients,
        *,
        clients_of_round: ClientsOfRound | None = None,
        clients_per_round: int,
        batch_size: int,
        local_steps: int | None = None,
        sampling: str = "fixed",
        participation: Participation | None = None,
        is_private: bool = False,
        seed: int,
        secret_seed: int | None = None,
    ):
        """Checks the options, which are those of `Trainer`.

        Args:
            algorithm: The algorithm.
            train: All training clients.
            clients_of_round: Maps a round to its clients, in place of random sampling.
            clients_per_round: Number of clients per round.
            batch_size: Examples per batch of a client.
            local_steps: Batches that a client samples for a round; None for all its batches.
            sampling: `fixed` or `poisson`, as in `ClientSampler`.
            participation: Dropouts, losses and delays of clients; None if all sampled clients take
                part.
            is_private: Whether differential privacy relies on the sampling.
            seed: Seed of the sampling of clients and of their examples.
            secret_seed: Seed of the sampling of clients, in place of `seed`.

        Raises:
            UserError: If an option is out of range, or does not fit the rest.
        """
        self.train, self.num_clients = train, train.num_clients
        self.clients_per_round = self.capacity = clients_per_round
        self.options: dict[str, Any] = {}
        self.is_random, self._clients_of_round = clients_of_round is None, clients_of_round
        self._has_participation = participation is not None
        self._participation = participation or Participation()
        self.keeps_lost = self._participation.lost_clients_keep
        if clients_of_round is not None:
            _check_nonrandom(participation, local_steps, sampling, is_private=is_private)
            return
        if self.keeps_lost and not algorithm.keeps:
            raise UserError(
                "lost_clients_keep requires clients that keep local variables, and those of "
                f"{algorithm.name} keep none: leave it out."
            )
        self._participation.check_sampling(sampling, is_private=is_private)
        self._eligible = self._participation.eligible(train)
        self.num_clients = len(self._eligible)
        self.capacity = self.clients_per_round = min(clients_per_round, self.num_clients)
        if sampling == "poisson":
            self.capacity = _poisson_capacity(self.clients_per_round, self.num_clients)
        most = local_steps * batch_size if local_steps else None
        self._seed = seed if secret_seed is None else secret_seed
        self._seconds = self._time(algorithm, most, batch_size) if participation else None
        # Rounded before `ceil`, because 10 * 1.1 is slightly more than 11.
        extra = round(self.clients_per_round * (1 + self._participation.over_selection), 6)
        self._sampler = ClientSampler(
            num_clients=self.num_clients,
            clients_per_round=min(math.ceil(extra), self.num_clients),
            seed=self._seed,
            dropout_rate=self._participation.dropout_rate,
            sampling=sampling,
        )
        self._is_fixed = sampling == "fixed"
        self._examples = functools.partial(
            sampled_clients, train, examples_per_round=most, seed=seed
        )
        self.options = {
            "clients_per_round": self.clients_per_round,
            "local_steps": local_steps,
            "client_sampling": sampling,
        }
        if participation is not None:
            self.options["participation"] = dataclasses.asdict(participation)

    def outcome(self, round_number: int) -> Outcome:
        """Returns the outcome of a round >= 0 for its sampled clients."""
        chosen, begins = self._sampler.sample_with_dropouts(round_number)
        random = generator(Purpose.ROUND_END, self._seed, round_number=round_number)
        sampled = self._eligible[chosen]
        return Outcome.of(
            self._participation,
            sampled,
            begins=begins,
            luck=random.random(len(sampled)),
            seconds=None if self._seconds is None else self._seconds[sampled],
            most_used=self.clients_per_round if self._is_fixed else len(sampled),
        )

    def clients_of_round(self, round_number: int) -> Clients:
        """Returns the clients whose updates a round uses, with their examples."""
        if self._clients_of_round is not None:
            return self._clients_of_round(round_number)
        reported = self.outcome(round_number).reported
        return self._examples(reported, round_number=round_number)

    def lost_of_round(self, round_number: int) -> Clients:
        """Returns the clients that train in a round but whose updates are not used."""
        lost = self.outcome(round_number).lost
        return self._examples(lost, round_number=round_number)

    def most_rounds(self, rounds: int) -> np.ndarray:
        """Returns the result of `ClientSampler.most_rounds`; for random sampling."""
        return self._sampler.most_rounds(rounds)

    def largest_batch(self, batch_size: int) -> int:
        """Returns the smallest batch size that makes the same batches, which saves padding."""
        counts = _count_examples(self.train) if self.is_random else None
        return batch_size if counts is None else min(batch_size, max(1, int(counts.max(initial=1))))

    def columns(self, round_number: int) -> dict[str, float]:
        """Returns a round's columns about participation; none if all sampled clients take part."""
        return self.outcome(round_number).columns if self._has_participation else {}

    def attended_rounds(self, rounds: int) -> dict[str, list[int]]:
        """Returns the rounds among the first ones in which each client took part, by name.

        Clients without examples never take part.
        """
        attended: dict[str, list[int]] = {client: [] for client in self.train.client_ids}
        for round_number in range(1, rounds + 1):
            for client in self._names(round_number):
                attended.setdefault(client, []).append(round_number)
        return attended

    def expect_never_sampled(self, rounds: int) -> float:
        """Returns the expected number of training clients that take part in none of the rounds.

        Clients that are always too late for a time limit are not counted.
        """
        if not self.is_random:
            return 0.0
        part = self._participation
        share_kept = (1 - part.dropout_rate) * (1 + part.over_selection)
        if not self.keeps_lost:
            share_kept *= 1 - part.lost_update_rate
        chance = min(1.0, self.clients_per_round / self.num_clients * share_kept)
        ineligible = self.train.num_clients - self.num_clients
        return ineligible + self.num_clients * (1 - chance) ** rounds

    def warn_of_never_sampled(self, rounds: int) -> None:
        """Warns if the rounds will probably never sample more than 1 % of the clients."""
        never = self.expect_never_sampled(rounds)
        if never <= 0.01 * self.train.num_clients:
            return
        left = {rounds * 2**n: self.expect_never_sampled(rounds * 2**n) for n in range(1, 11)}
        more = next((number for number, count in left.items() if count < 1), None)
        end = f"; {more:,} rounds would leave {left[more]:.1g}" if more else ""
        logging.warning(
            f"about {never:,.0f} of {self.train.num_clients:,} clients will never be sampled in "
            f"{rounds:,} rounds of {self.clients_per_round:,}{end}"
        )

    def _names(self, round_number: int) -> np.ndarray:
        # Names are available without reading the examples, which may be on disk.
        if self._clients_of_round is not None:
            data, indices = self._clients_of_round(round_number)
            return data.client_ids[indices]
        outcome = self.outcome(round_number)
        lost = outcome.lost if self.keeps_lost else outcome.lost[:0]
        chosen, counts = np.concatenate([outcome.reported, lost]), _count_examples(self.train)
        return self.train.client_ids[chosen if counts is None else chosen[counts[chosen] > 0]]

    def _time(self, algorithm: Algorithm, most: int | None, batch_size: int) -> np.ndarray | None:
        """Returns the seconds of each client's round; None if clients are read when sampled."""
        part = self._participation
        counts = _count_examples(self.train)
        if counts is None:
            timed = [name for name in ("over_selection", "round_time_limit") if getattr(part, name)]
            if part.clock != ClientClock():
                timed.append("a clock")
            if timed:
                raise UserError(
                    f"{timed[0]} requires the number of examples of each client, and these clients "
                    "are read when they are sampled."
                )
            return None
        used = counts if most is None else np.minimum(counts, most)
        work = count_work(algorithm.phases, used, batch_size=batch_size)
        return part.clock.seconds(work, self._seed)


def _check_nonrandom(
    participation: Participation | None, local_steps: int | None, sampling: str, *, is_private: bool
) -> None:
    if is_private:
        raise UserError(
            "differential privacy requires randomly sampled clients, not clients_of_round."
        )
    if participation is not None:
        raise UserError("participation requires randomly sampled clients, not clients_of_round.")
    if local_steps or sampling != "fixed":
        name = "local_steps" if local_steps else "client_sampling"
        raise UserError(
            f"{name} requires randomly sampled clients, not clients_of_round: leave it out."
        )


def _count_examples(train: ClientDataset | LazyClients) -> np.ndarray | None:
    return getattr(train, "counts", None)


def _poisson_capacity(expected: int, num_clients: int) -> int:
    """Returns the number of clients for which shards have room, given the expected number.

    One round in fifteen has more clients, and then one more shard. Room for all clients would cost
    each round more time.
    """
    deviation = math.sqrt(expected * (1 - expected / num_clients))
    return min(num_clients, math.ceil(expected + 1.5 * deviation))

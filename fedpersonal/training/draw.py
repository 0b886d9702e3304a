"""Who takes part in each round of a training, and whose examples that takes."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from absl import logging

from fedpersonal.data.clients import ClientDataset
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.training.clients import (
    Clients,
    ClientSampler,
    ClientsOfRound,
    ReadWhenDrawn,
    drawn_clients,
)
from fedpersonal.training.participation import ClientClock, Outcome, Participation, count_work


class Draw:
    """The clients of all rounds: given by a function, or drawn at random.

    The draw is a pure function of the seed and the round number. A round's end draws, of
    `Purpose.ROUND_END`, a uniform number for each client drawn, whose update is lost if it is
    below `lost_update_rate`.

    Attributes:
        train: All training clients.
        num_clients: How many may take part.
        clients_per_round: How many a round has, on average where their number is random.
        room: How many clients shards have room for.
        is_random: Whether clients are drawn.
        keeps_lost: Whether those whose updates are lost keep what they have trained.
        options: What tells this draw from others, for JSON.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        train: ClientDataset | ReadWhenDrawn,
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
            algorithm: What a client does in a round.
            train: All training clients.
            clients_of_round: Whose examples a round takes, in place of a random draw.
            clients_per_round: How many are wanted.
            batch_size: Examples of a client's batch.
            local_steps: Batches that a client draws at random for a round; None for all it has.
            sampling: `fixed` or `poisson`, as of `ClientSampler`.
            participation: What becomes of the clients drawn; None if all take part.
            is_private: Whether differential privacy counts on the draw.
            seed: Seed of clients' draws, and of the examples that they draw.
            secret_seed: What clients are drawn by in place of `seed`.

        Raises:
            UserError: If an option is out of range, or does not fit the rest.
        """
        self.train, self.num_clients = train, train.num_clients
        self.clients_per_round = self.room = clients_per_round
        self.options: dict[str, Any] = {}
        self.is_random, self._given = clients_of_round is None, clients_of_round
        self._asked, self._participation = participation, participation or Participation()
        self.keeps_lost = self._participation.lost_clients_keep
        if clients_of_round is not None:
            _check_given(participation, local_steps, sampling, is_private=is_private)
            return
        if self.keeps_lost and not algorithm.keeps:
            raise UserError(
                f"lost_clients_keep is of clients that keep local variables, and those of "
                f"{algorithm.name} keep none: leave it out."
            )
        self._participation.check_draw(sampling, is_private=is_private)
        self._eligible = self._participation.eligible(train)
        self.num_clients = len(self._eligible)
        self.room = self.clients_per_round = min(clients_per_round, self.num_clients)
        if sampling == "poisson":
            self.room = _poisson_room(self.clients_per_round, self.num_clients)
        most = local_steps * batch_size if local_steps else None
        self._seed = seed if secret_seed is None else secret_seed
        self._seconds = self._time(algorithm, most, batch_size) if participation else None
        # Rounded first: 10 * 1.1 is a little more than 11.
        extra = round(self.clients_per_round * (1 + self._participation.over_selection), 6)
        self._sampler = ClientSampler(
            num_clients=self.num_clients,
            clients_per_round=min(math.ceil(extra), self.num_clients),
            seed=self._seed,
            dropout_rate=self._participation.dropout_rate,
            sampling=sampling,
        )
        self._is_fixed = sampling == "fixed"
        self._examples = functools.partial(drawn_clients, train, examples_per_round=most, seed=seed)
        self.options = {
            "clients_per_round": self.clients_per_round,
            "local_steps": local_steps,
            "client_sampling": sampling,
        }
        if participation is not None:
            self.options["participation"] = dataclasses.asdict(participation)

    def outcome(self, round_number: int) -> Outcome:
        """Returns what becomes of the clients that a round >= 0 draws."""
        chosen, begins = self._sampler.draw(round_number)
        random = generator(Purpose.ROUND_END, self._seed, round_number=round_number)
        drawn = self._eligible[chosen]
        return Outcome.of(
            self._participation,
            drawn,
            begins=begins,
            luck=random.random(len(drawn)),
            seconds=None if self._seconds is None else self._seconds[drawn],
            wanted=self.clients_per_round if self._is_fixed else len(drawn),
        )

    def clients_of_round(self, round_number: int) -> Clients:
        """Returns whose examples a round takes."""
        if self._given is not None:
            return self._given(round_number)
        reported = self.outcome(round_number).reported
        return self._examples(reported, round_number=round_number)

    def lost_of_round(self, round_number: int) -> Clients:
        """Returns those who train in a round, and whose updates are lost."""
        lost = self.outcome(round_number).lost
        return self._examples(lost, round_number=round_number)

    def most_rounds(self, rounds: int) -> np.ndarray:
        """Returns what `ClientSampler.most_rounds` does, of clients drawn at random."""
        return self._sampler.most_rounds(rounds)

    def largest_batch(self, batch_size: int) -> int:
        """Returns a size that makes the same batches, without room that nobody's examples fill."""
        counts = _count_examples(self.train) if self.is_random else None
        return batch_size if counts is None else min(batch_size, max(1, int(counts.max(initial=1))))

    def columns(self, round_number: int) -> dict[str, float]:
        """Returns what a round's row says of who took part; nothing if all drawn did."""
        return self.outcome(round_number).columns if self._asked else {}

    def attended_rounds(self, rounds: int) -> dict[str, list[int]]:
        """Returns in which of the first rounds each training client took part, by name.

        Clients without examples never do.
        """
        attended: dict[str, list[int]] = {client: [] for client in self.train.client_ids}
        for round_number in range(1, rounds + 1):
            for client in self._names(round_number):
                attended.setdefault(client, []).append(round_number)
        return attended

    def expect_never_drawn(self, rounds: int) -> float:
        """Returns how many training clients to expect in none of so many rounds.

        Clients that a time limit bars are not counted.
        """
        if not self.is_random:
            return 0.0
        part = self._participation
        share_kept = (1 - part.dropout_rate) * (1 + part.over_selection)
        if not self.keeps_lost:
            share_kept *= 1 - part.lost_update_rate
        chance = min(1.0, self.clients_per_round / self.num_clients * share_kept)
        barred = self.train.num_clients - self.num_clients
        return barred + self.num_clients * (1 - chance) ** rounds

    def warn_of_never_drawn(self, rounds: int) -> None:
        """Warns where so many rounds will never draw more than 1 % of the clients."""
        never = self.expect_never_drawn(rounds)
        if never <= 0.01 * self.train.num_clients:
            return
        left = {rounds * 2**n: self.expect_never_drawn(rounds * 2**n) for n in range(1, 11)}
        more = next((number for number, count in left.items() if count < 1), None)
        end = f"; {more:,} rounds would leave {left[more]:.1g}" if more else ""
        logging.warning(
            f"about {never:,.0f} of {self.train.num_clients:,} clients will never be drawn in "
            f"{rounds:,} rounds of {self.clients_per_round:,}{end}"
        )

    def _names(self, round_number: int) -> np.ndarray:
        # Who is drawn is known without the examples, which may be on disk.
        if self._given is not None:
            data, indices = self._given(round_number)
            return data.client_ids[indices]
        outcome = self.outcome(round_number)
        lost = outcome.lost if self.keeps_lost else outcome.lost[:0]
        chosen, counts = np.concatenate([outcome.reported, lost]), _count_examples(self.train)
        return self.train.client_ids[chosen if counts is None else chosen[counts[chosen] > 0]]

    def _time(self, algorithm: Algorithm, most: int | None, batch_size: int) -> np.ndarray | None:
        """Returns what a round of each client takes; None where clients are read when drawn."""
        asked = self._participation
        counts = _count_examples(self.train)
        if counts is None:
            needs = [
                name for name in ("over_selection", "round_time_limit") if getattr(asked, name)
            ]
            if asked.clock != ClientClock():
                needs.append("a clock")
            if needs:
                raise UserError(
                    f"{needs[0]} needs to know how many examples clients have, and these are read "
                    "when they are drawn."
                )
            return None
        drawn = counts if most is None else np.minimum(counts, most)
        work = count_work(algorithm.phases, drawn, batch_size=batch_size)
        return asked.clock.seconds(work, self._seed)


def _check_given(
    participation: Participation | None, local_steps: int | None, sampling: str, *, is_private: bool
) -> None:
    if is_private:
        raise UserError("differential privacy counts on a random draw, not clients_of_round.")
    if participation is not None:
        raise UserError("participation is of clients drawn at random, not clients_of_round.")
    if local_steps or sampling != "fixed":
        name = "local_steps" if local_steps else "client_sampling"
        raise UserError(f"{name} is of a random draw, not clients_of_round: leave it out.")


def _count_examples(train: ClientDataset | ReadWhenDrawn) -> np.ndarray | None:
    return getattr(train, "counts", None)


def _poisson_room(expected: int, num_clients: int) -> int:
    """Returns how many clients shards have room for where so many are expected.

    In one round of fifteen there are more; they make one shard more. Room for all would cost each
    round more time than these take.
    """
    deviation = math.sqrt(expected * (1 - expected / num_clients))
    return min(num_clients, math.ceil(expected + 1.5 * deviation))

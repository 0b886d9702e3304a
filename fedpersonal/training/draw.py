"""Who takes part in each round of a training, and whose examples that takes."""

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
from fedpersonal.training.clients import ClientSampler, ClientsOfRound, ReadWhenDrawn, drawn_clients
from fedpersonal.training.participation import Attendance, Participation, attend, count_examples


@dataclasses.dataclass(frozen=True, eq=False)
class Draw:
    """The clients of all rounds, drawn at random or given by a function.

    Attributes:
        train: All training clients.
        clients_of_round: Whose examples a round takes.
        num_clients: How many may take part.
        clients_per_round: How many a round has, on average where their number is random.
        room: How many clients shards have room for.
        share_kept: The chance of a client that a round wants to end it with what it has trained.
        lost_of_round: Those who train and whose updates are lost, where they keep what they
            trained; or None.
        sampler: What draws them, where all who are drawn take part.
        attendance: What draws them, and says who of them takes part, where not all do.
        options: What tells this draw from others, for JSON.
    """

    train: ClientDataset | ReadWhenDrawn
    clients_of_round: ClientsOfRound
    num_clients: int
    clients_per_round: int
    room: int
    share_kept: float = 1.0
    lost_of_round: ClientsOfRound | None = None
    sampler: ClientSampler | None = None
    attendance: Attendance | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def most_rounds(self, rounds: int) -> np.ndarray:
        """Returns what `ClientSampler.most_rounds` does, of clients drawn at random."""
        sampler = self.attendance.sampler if self.attendance else self.sampler
        assert sampler
        return sampler.most_rounds(rounds)

    def largest_batch(self, batch_size: int) -> int:
        """Returns a size that makes the same batches, without room that nobody's examples fill."""
        counts = count_examples(self.train) if self.is_random else None
        return batch_size if counts is None else min(batch_size, max(1, int(counts.max(initial=1))))

    @property
    def is_random(self) -> bool:
        """Whether clients are drawn."""
        return bool(self.sampler or self.attendance)

    def columns(self, round_number: int) -> dict[str, float]:
        """Returns what a round's row says of who took part; nothing if all drawn did."""
        return self.attendance.of(round_number).columns if self.attendance else {}

    def attended_rounds(self, rounds: int) -> dict[str, list[int]]:
        """Returns in which of the first rounds each training client took part, by name."""
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
        chance = min(1.0, self.clients_per_round / self.num_clients * self.share_kept)
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
        if self.attendance:
            outcome = self.attendance.of(round_number)
            lost = outcome.lost if self.lost_of_round else outcome.lost[:0]
            return self.train.client_ids[np.concatenate([outcome.reported, lost])]
        if self.sampler:
            return self.train.client_ids[self.sampler.sample(round_number)]
        data, indices = self.clients_of_round(round_number)
        return data.client_ids[indices]


def draw_clients(
    algorithm: Algorithm,
    train: ClientDataset | ReadWhenDrawn,
    *,
    clients_of_round: ClientsOfRound | None = None,
    clients_per_round: int,
    batch_size: int,
    local_steps: int | None,
    sampling: str,
    participation: Participation | None,
    is_private: bool,
    seed: int,
    secret_seed: int | None = None,
) -> Draw:
    """Returns a draw of clients; the arguments are those of `Trainer` and `Attendance`.

    `secret_seed` is what clients are drawn by in place of `seed`, by which they draw examples.

    Raises:
        UserError: If an option is out of range, or does not fit the rest.
    """
    if clients_of_round is not None:
        if is_private:
            raise UserError("differential privacy counts on a random draw, not clients_of_round.")
        if participation is not None:
            raise UserError("participation is of clients drawn at random, not clients_of_round.")
        if local_steps or sampling != "fixed":
            name = "local_steps" if local_steps else "client_sampling"
            raise UserError(f"{name} is of a random draw, not clients_of_round: leave it out.")
        many = train.num_clients
        return Draw(train, clients_of_round, many, clients_per_round, clients_per_round)
    eligible, num_clients = None, train.num_clients
    clients_seed = seed if secret_seed is None else secret_seed
    if participation is not None:
        participation.check_draw(sampling, is_private=is_private)
        eligible = participation.eligible(train)
        num_clients = len(eligible)
    room = clients_per_round = min(clients_per_round, num_clients)
    if sampling == "poisson":
        room = _poisson_room(clients_per_round, num_clients)
    most = local_steps * batch_size if local_steps else None
    draw = functools.partial(drawn_clients, train, examples_per_round=most, seed=seed)
    scheme: dict[str, Any] = {"clients_per_round": clients_per_round, "sampling": sampling}
    options = {
        "clients_per_round": clients_per_round,
        "local_steps": local_steps,
        "client_sampling": sampling,
    }
    if participation is None:
        sampler = ClientSampler(num_clients=num_clients, seed=clients_seed, **scheme)
        return Draw(
            train,
            draw(sampler.sample),
            num_clients,
            clients_per_round,
            room,
            sampler=sampler,
            options=options,
        )
    attendance = attend(
        participation,
        algorithm,
        train,
        eligible=eligible,
        batch_size=batch_size,
        examples_per_round=most,
        seed=clients_seed,
        **scheme,
    )
    keeps = participation.lost_clients_keep
    reports = (1 - participation.dropout_rate) * (1 + participation.over_selection)
    share_kept = reports if keeps else reports * (1 - participation.lost_update_rate)
    return Draw(
        train,
        draw(lambda number: attendance.of(number).reported),
        num_clients,
        clients_per_round,
        room,
        share_kept,
        lost_of_round=draw(lambda number: attendance.of(number).lost) if keeps else None,
        attendance=attendance,
        options={**options, "participation": dataclasses.asdict(participation)},
    )


def _poisson_room(expected: int, num_clients: int) -> int:
    """Returns how many clients shards have room for where so many are expected.

    In one round of fifteen there are more; they make one shard more. Room for all would cost each
    round more time than these take.
    """
    deviation = math.sqrt(expected * (1 - expected / num_clients))
    return min(num_clients, math.ceil(expected + 1.5 * deviation))

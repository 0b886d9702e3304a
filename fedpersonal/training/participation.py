"""Clients that drop out, lose their updates or report too late, by a simulated clock."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpersonal import former
from fedpersonal.data.splits import count_batches
from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator

if TYPE_CHECKING:
    from fedpersonal.data.clients import ClientDataset
    from fedpersonal.methods.phases import Phase
    from fedpersonal.training.clients import LazyClients


@dataclasses.dataclass(frozen=True)
class ClientClock:
    """The simulated duration of a client's round, in seconds.

    It is `overhead_seconds`, plus `example_seconds` for each example of each pass, times the
    client's slowness, which is log-normal with a median of 1.

    Attributes:
        overhead_seconds: Duration that any round adds, such as for a connection.
        example_seconds: Duration of an example on a client of median speed.
        speed_spread: Standard deviation of the logarithm of slowness. A client has the same
            slowness in all rounds.
    """

    overhead_seconds: float = 1.0
    example_seconds: float = 0.01
    speed_spread: float = 0.5

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if not 0 <= value < math.inf:
                raise UserError(f"ClientClock: {name}={value} is out of range.")

    def seconds(self, examples: np.ndarray, seed: int) -> np.ndarray:
        """Returns the seconds of each client's round, float64 (num_clients,).

        Slowness is `exp(speed_spread * z)`, with standard normal numbers `z` of `Purpose.SPEEDS`.

        Args:
            examples: (num_clients,) number of examples that the client's steps process.
            seed: A non-negative integer.
        """
        normal = generator(Purpose.SPEEDS, seed).standard_normal(len(examples))
        slowness = np.exp(self.speed_spread * normal)
        return self.overhead_seconds + examples * self.example_seconds * slowness


def count_work(phases: Sequence[Phase], counts: np.ndarray, *, batch_size: int) -> np.ndarray:
    """Returns the number of examples that the steps of a round process, int64 (clients,).

    Args:
        phases: A client's phases. The exact solution of a ridge phase counts as one pass. If the
            number of passes grows from round to round, the largest number counts.
        counts: (clients,) number of a client's examples in a round.
        batch_size: Examples per batch; a batch that is not full counts as full.
    """
    total = np.zeros(len(counts), np.int64)
    for phase in phases:
        steps = count_batches(phase.data, -(-counts // batch_size)) * getattr(phase, "epochs", 1)
        most = getattr(phase, "max_steps", None)
        total += batch_size * (steps if most is None else np.minimum(steps, most))
    return total


@dataclasses.dataclass(frozen=True)
class Participation:
    """Dropouts, lost updates and delays of the sampled clients of a round.

    Attributes:
        dropout_rate: The probability of each sampled client to drop out before it begins,
            independently of the others.
        lost_update_rate: The probability that the update of a client that has trained is lost.
        over_selection: Number of additionally sampled clients, as a share of `clients_per_round`;
            the round uses the clients that report first.
        round_time_limit: Seconds after which a round ends; later reports are dropped. None for no
            limit.
        min_examples: Clients with fewer examples are never sampled.
        lost_clients_keep: Whether clients that have trained, but whose update is not used, keep
            their trained local variables; otherwise they keep the previous ones.
        clock: The duration of a client's round.

    Examples:
        With `model`, `algorithm` and `clients` of `Trainer`'s example:

        >>> late = fp.Participation(over_selection=0.5, round_time_limit=2.0)
        >>> trainer = fp.Trainer(model, algorithm, clients, clients_per_round=2, participation=late)
        >>> trainer.participation_columns[:4]
        ['num_drawn', 'num_dropped_before', 'num_dropped_after', 'num_late']
    """

    dropout_rate: float = 0.0
    lost_update_rate: float = 0.0
    over_selection: float = 0.0
    round_time_limit: float | None = None
    min_examples: int = 0
    lost_clients_keep: bool = False
    clock: ClientClock = dataclasses.field(default_factory=ClientClock)

    def __post_init__(self):
        is_in_range = {
            "dropout_rate": 0 <= self.dropout_rate < 1,
            "lost_update_rate": 0 <= self.lost_update_rate < 1,
            "over_selection": 0 <= self.over_selection < math.inf,
            "round_time_limit": self.round_time_limit is None or self.round_time_limit > 0,
            "min_examples": self.min_examples >= 0,
        }
        for name, is_right in is_in_range.items():
            if not is_right:
                raise UserError(f"Participation: {name}={getattr(self, name)} is out of range.")
        limit = self.round_time_limit
        if limit is not None and limit <= self.clock.overhead_seconds:
            raise UserError(
                f"round_time_limit is {limit}: no client reports so early, because the overhead "
                f"alone is {self.clock.overhead_seconds} seconds."
            )
        is_used = self.lost_update_rate or self.over_selection or limit is not None
        if self.lost_clients_keep and not is_used:
            raise UserError(
                "lost_clients_keep has no effect without lost_update_rate, over_selection or "
                "round_time_limit: all updates are used."
            )

    check_draw = former.FormerAttribute("check_sampling")

    def check_sampling(self, sampling: str, *, is_private: bool) -> None:
        """Raises a `UserError` if the sampling, or privacy accounting, does not allow an option."""
        if self.over_selection and is_private:
            raise UserError(
                "over_selection uses the fastest clients, which is no random sample, but the "
                "epsilon of differential privacy requires one: leave over_selection out."
            )
        if self.over_selection and sampling != "fixed":
            raise UserError(
                "over_selection samples more clients than clients_per_round, and with Poisson "
                "sampling that number is random: sample with a fixed size, or leave it out."
            )

    def eligible(self, train: ClientDataset | LazyClients) -> np.ndarray:
        """Returns the indices of the clients that can be sampled.

        Raises:
            UserError: If there are none, or their numbers of examples are not available.
        """
        if not self.min_examples:
            return np.arange(train.num_clients)
        counts = getattr(train, "counts", None)
        if counts is None:
            raise UserError(
                f"min_examples is {self.min_examples}, but these clients are read when they are "
                "sampled: their numbers of examples are not available earlier."
            )
        matches = np.flatnonzero(counts >= self.min_examples)
        if not matches.size:
            raise UserError(
                f"min_examples is {self.min_examples}, but no client has more than {counts.max()}."
            )
        return matches


class Outcome(NamedTuple):
    """The outcome of a round for its sampled clients, by index, in the order of sampling.

    Attributes:
        reported: Clients whose updates are used.
        lost: Clients that have trained but whose updates are not used.
        columns: Columns of `metrics.csv`: numbers of sampled clients by outcome, and the seconds of
            the round.
    """

    reported: np.ndarray
    lost: np.ndarray
    columns: dict[str, float]

    @classmethod
    def of(
        cls,
        participation: Participation,
        sampled: np.ndarray,
        *,
        begins: np.ndarray,
        luck: np.ndarray,
        seconds: np.ndarray | None,
        most_used: int,
    ) -> Outcome:
        """Returns the outcome of a round for its sampled clients.

        Args:
            participation: The rates and limits.
            sampled: (clients,) indices, in the order of sampling.
            begins: (clients,) bool, False for clients that drop out before they begin.
            luck: (clients,) uniform numbers; below `lost_update_rate` an update is lost.
            seconds: (clients,) durations of the clients' rounds; None if not available.
            most_used: The largest number of updates that are used; the first reports count.
        """
        limit = participation.round_time_limit
        takes = np.zeros(len(sampled)) if seconds is None else seconds
        is_lost = begins & (luck < participation.lost_update_rate)
        is_late = begins & ~is_lost & (takes > (math.inf if limit is None else limit))
        in_time = np.flatnonzero(begins & ~is_lost & ~is_late)
        used = np.sort(in_time[np.argsort(takes[in_time], kind="stable")][:most_used])
        columns: dict[str, float] = {
            "num_drawn": len(sampled),
            "num_dropped_before": int((~begins).sum()),
            "num_dropped_after": int(is_lost.sum()),
            "num_late": int(is_late.sum()),
            "num_surplus": len(in_time) - len(used),
            "num_reported": len(used),
        }
        if seconds is not None:
            # A server with too few reports waits until the limit.
            waits = limit is not None and len(used) < most_used
            columns["simulated_seconds"] = limit if waits else takes[used].max(initial=0.0).item()
        works = begins.copy()
        works[used] = False
        return cls(sampled[used], sampled[works], columns)

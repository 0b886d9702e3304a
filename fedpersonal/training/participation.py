"""Clients that drop out, lose their updates or come too late, by a simulated clock."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpersonal.data.splits import count_batches
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError

if TYPE_CHECKING:
    from fedpersonal.data.clients import ClientDataset
    from fedpersonal.methods.phases import Phase
    from fedpersonal.training.clients import ReadWhenDrawn


@dataclasses.dataclass(frozen=True)
class ClientClock:
    """What a client's round takes, in simulated seconds.

    It is `overhead_seconds`, and `example_seconds` for each example of each pass, times the
    client's slowness, which is log-normal with a median of 1.

    Attributes:
        overhead_seconds: What any round takes, such as for a connection.
        example_seconds: What an example takes on a client of median speed.
        speed_spread: Standard deviation of the logarithm of slowness, which a client has for good.
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
            examples: (num_clients,) examples that their steps process.
            seed: A non-negative integer.
        """
        normal = generator(Purpose.SPEEDS, seed).standard_normal(len(examples))
        slowness = np.exp(self.speed_spread * normal)
        return self.overhead_seconds + examples * self.example_seconds * slowness


def count_work(phases: Sequence[Phase], counts: np.ndarray, *, batch_size: int) -> np.ndarray:
    """Returns how many examples the steps of a round process, int64 (clients,).

    Args:
        phases: What a client does; the exact solution of a ridge phase is one pass, and passes that
            grow from round to round count as all of them.
        counts: (clients,) examples that a client has in a round.
        batch_size: Examples of a batch; one that is not full counts as one that is.
    """
    total = np.zeros(len(counts), np.int64)
    for phase in phases:
        steps = count_batches(phase.data, -(-counts // batch_size)) * getattr(phase, "epochs", 1)
        most = getattr(phase, "max_steps", None)
        total += batch_size * (steps if most is None else np.minimum(steps, most))
    return total


@dataclasses.dataclass(frozen=True)
class Participation:
    """What becomes of the clients of a round.

    Attributes:
        dropout_rate: The chance of each client drawn to drop out before it begins, independently
            of the others.
        lost_update_rate: The chance of each client that has done its work that its update is lost.
        over_selection: So many more clients are drawn, as a share of those wanted; the first ones
            that report are used.
        round_time_limit: Seconds after which a round ends: who reports later is late, and dropped.
            None for no limit.
        min_examples: Clients with fewer examples are never drawn.
        lost_clients_keep: Whether clients that have done their work, but whose update is not used,
            keep the local variables that they have trained, or those that they had.
        clock: How long a client's round takes.

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
                f"round_time_limit is {limit}: nobody reports so early, as the overhead alone is "
                f"{self.clock.overhead_seconds} seconds."
            )
        is_used = self.lost_update_rate or self.over_selection or limit is not None
        if self.lost_clients_keep and not is_used:
            raise UserError(
                "lost_clients_keep is of clients whose update is not used, of which there are none "
                "without lost_update_rate, over_selection or round_time_limit."
            )

    def check_draw(self, sampling: str, *, is_private: bool) -> None:
        """Raises a `UserError` if the draw of clients, or its accounting, does not allow it."""
        if self.over_selection and is_private:
            raise UserError(
                "over_selection uses the fastest clients, which is no random draw: leave it out, "
                "as the epsilon of differential privacy counts on one."
            )
        if self.over_selection and sampling != "fixed":
            raise UserError(
                "over_selection draws more clients than are wanted, and Poisson sampling wants no "
                "fixed number: sample with a fixed size, or leave it out."
            )

    def eligible(self, train: ClientDataset | ReadWhenDrawn) -> np.ndarray:
        """Returns the indices of the clients that may be drawn.

        Raises:
            UserError: If there are none, or how much they have is not known.
        """
        if not self.min_examples:
            return np.arange(train.num_clients)
        counts = getattr(train, "counts", None)
        if counts is None:
            raise UserError(
                f"min_examples is {self.min_examples}, but these clients are read when they are "
                "drawn: how many examples they have is not known before."
            )
        found = np.flatnonzero(counts >= self.min_examples)
        if not found.size:
            raise UserError(
                f"min_examples is {self.min_examples}, but no client has more than {counts.max()}."
            )
        return found


class Outcome(NamedTuple):
    """What became of a round's clients, by index, in the order of their draw.

    Attributes:
        reported: Those whose updates are used.
        lost: Those that have done their work in vain.
        columns: How many were drawn, and what became of them, and the seconds of the round.
    """

    reported: np.ndarray
    lost: np.ndarray
    columns: dict[str, float]

    @classmethod
    def of(
        cls,
        participation: Participation,
        drawn: np.ndarray,
        *,
        begins: np.ndarray,
        luck: np.ndarray,
        seconds: np.ndarray | None,
        wanted: int,
    ) -> Outcome:
        """Returns what becomes of the clients drawn.

        Args:
            participation: What may become of them.
            drawn: (clients,) indices, in the order of their draw.
            begins: (clients,) bool: those who have not dropped out before.
            luck: (clients,) uniform numbers; below `lost_update_rate` an update is lost.
            seconds: (clients,) what their rounds take; None where that is not known.
            wanted: How many updates are used at most: those of the first that report.
        """
        limit = participation.round_time_limit
        takes = np.zeros(len(drawn)) if seconds is None else seconds
        is_lost = begins & (luck < participation.lost_update_rate)
        is_late = begins & ~is_lost & (takes > (math.inf if limit is None else limit))
        in_time = np.flatnonzero(begins & ~is_lost & ~is_late)
        used = np.sort(in_time[np.argsort(takes[in_time], kind="stable")][:wanted])
        columns: dict[str, float] = {
            "num_drawn": len(drawn),
            "num_dropped_before": int((~begins).sum()),
            "num_dropped_after": int(is_lost.sum()),
            "num_late": int(is_late.sum()),
            "num_surplus": len(in_time) - len(used),
            "num_reported": len(used),
        }
        if seconds is not None:
            # A server that misses somebody waits until the limit.
            waits = limit is not None and len(used) < wanted
            columns["simulated_seconds"] = limit if waits else takes[used].max(initial=0.0).item()
        works = begins.copy()
        works[used] = False
        return cls(drawn[used], drawn[works], columns)

"""Clients that drop out, lose their updates or come too late, by a simulated clock."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpersonal.data.splits import count_batches
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.training.clients import ClientSampler

if TYPE_CHECKING:
    from fedpersonal.data.clients import ClientDataset
    from fedpersonal.methods.algorithm import Algorithm, Phase
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
        counts = count_examples(train)
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


def count_examples(train: ClientDataset | ReadWhenDrawn) -> np.ndarray | None:
    """Returns how many examples each client has, or None where they are read when drawn."""
    return getattr(train, "counts", None)


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


class Attendance:
    """Tells for each round who takes part: a pure function of the seed and its number.

    A round's end draws, of `Purpose.ROUND_END`, a uniform number for each client drawn, whose
    update is lost if it is below `lost_update_rate`.
    """

    def __init__(
        self,
        participation: Participation,
        *,
        eligible: np.ndarray,
        clients_per_round: int,
        seed: int,
        sampling: str = "fixed",
        work_fn: Callable[[], np.ndarray] | None = None,
    ):
        """Checks and keeps the options.

        Args:
            participation: What becomes of clients.
            eligible: Indices of the clients that may be drawn.
            clients_per_round: How many of them are wanted; with Poisson sampling, on average.
            seed: A non-negative integer.
            sampling: As of `ClientSampler`.
            work_fn: Returns how many examples a round of each client processes, eligible or not;
                None where that is not known.

        Raises:
            UserError: If an option is out of range, or needs work that is not known.
        """
        self._options, self._eligible, self._seed = participation, eligible, seed
        self._work_fn = work_fn
        needs = [n for n in ("over_selection", "round_time_limit") if getattr(participation, n)]
        if participation.clock != ClientClock():
            needs.append("a clock")
        if work_fn is None and needs:
            raise UserError(
                f"{needs[0]} needs to know how many examples clients have, and these are read when "
                "they are drawn."
            )
        # Rounded first: 10 * 1.1 is a little more than 11.
        drawn = math.ceil(round(clients_per_round * (1 + participation.over_selection), 6))
        self._wanted = clients_per_round if sampling == "fixed" else None
        self._sampler = ClientSampler(
            num_clients=len(eligible),
            clients_per_round=min(drawn, len(eligible)),
            seed=seed,
            dropout_rate=participation.dropout_rate,
            sampling=sampling,
        )

    @property
    def sampler(self) -> ClientSampler:
        """What draws the clients."""
        return self._sampler

    def of(self, round_number: int) -> Outcome:
        """Returns what becomes of the clients of a round >= 0."""
        chosen, begins = self._sampler.draw(round_number)
        drawn = self._eligible[chosen]
        random = generator(Purpose.ROUND_END, self._seed, round_number=round_number)
        is_lost = begins & (random.random(len(drawn)) < self._options.lost_update_rate)
        limit, seconds = self._options.round_time_limit, np.zeros(len(drawn))
        if self._work_fn is not None:
            seconds = self._seconds[drawn]
        is_late = begins & ~is_lost & (seconds > (math.inf if limit is None else limit))
        in_time = np.flatnonzero(begins & ~is_lost & ~is_late)
        wanted = len(drawn) if self._wanted is None else self._wanted
        used = np.sort(in_time[np.argsort(seconds[in_time], kind="stable")][:wanted])
        columns: dict[str, float] = {
            "num_drawn": len(drawn),
            "num_dropped_before": int((~begins).sum()),
            "num_dropped_after": int(is_lost.sum()),
            "num_late": int(is_late.sum()),
            "num_surplus": len(in_time) - len(used),
            "num_reported": len(used),
        }
        if self._work_fn is not None:
            # A server that misses somebody waits until the limit.
            waits = limit is not None and len(used) < wanted
            columns["simulated_seconds"] = limit if waits else seconds[used].max(initial=0.0).item()
        works = begins.copy()
        works[used] = False
        return Outcome(drawn[used], drawn[works], columns)

    @functools.cached_property
    def _seconds(self) -> np.ndarray:
        """What a round of each client takes."""
        assert self._work_fn
        return self._options.clock.seconds(self._work_fn(), self._seed)


def attend(
    participation: Participation,
    algorithm: Algorithm,
    train: ClientDataset | ReadWhenDrawn,
    *,
    batch_size: int,
    examples_per_round: int | None = None,
    **options: Any,
) -> Attendance:
    """Returns who takes part in training.

    Args:
        participation: What becomes of clients.
        algorithm: What a client does in a round.
        train: All clients.
        batch_size: Examples of a client's batch.
        examples_per_round: How many examples a client draws for a round; None for all it has.
        **options: The others of `Attendance`.

    Raises:
        UserError: As of `Attendance`; or if clients are to keep what the algorithm does not keep.
    """
    if participation.lost_clients_keep and not algorithm.keeps:
        raise UserError(
            f"lost_clients_keep is of clients that keep local variables, and those of "
            f"{algorithm.name} keep none: leave it out."
        )
    counts, most = count_examples(train), examples_per_round

    def work(counts: np.ndarray) -> np.ndarray:
        drawn = counts if most is None else np.minimum(counts, most)
        return count_work(algorithm.phases, drawn, batch_size=batch_size)

    work_fn = None if counts is None else functools.partial(work, counts)
    return Attendance(participation, work_fn=work_fn, **options)

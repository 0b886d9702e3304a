"""Who takes part in each round, and what becomes of those who do not."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.simulation.clock import ClientClock, count_work
from fedpersonal.simulation.participation import Participation, count_examples
from fedpersonal.simulation.sampling import ClientSampler

if TYPE_CHECKING:
    from fedpersonal.algorithm import Algorithm
    from fedpersonal.data.client_dataset import ClientDataset
    from fedpersonal.simulation.clients import ReadWhenDrawn


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

    A round's end draws, of `Purpose.ROUND_END` and for all clients drawn, uniform numbers, which
    below `lost_update_rate` lose an update, and then standard normal ones, each client's jitter.
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
        num_bytes_fn: Callable[[], int] = lambda: 0,
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
            num_bytes_fn: Returns what is sent to a client and back, for a clock that counts it.

        Raises:
            UserError: If an option is out of range, or needs work that is not known.
        """
        self._options, self._eligible, self._seed = participation, eligible, seed
        self._work_fn, self._num_bytes_fn = work_fn, num_bytes_fn
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
        luck, limit = random.standard_normal(len(drawn)), self._options.round_time_limit
        seconds = np.zeros(len(drawn))
        if self._work_fn is not None:
            work, slowness = self._speeds
            clock = self._options.clock
            num_bytes = self._num_bytes_fn() if clock.bytes_per_second else 0
            seconds = clock.seconds(work[drawn], slowness[drawn], luck, num_bytes)
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
    def _speeds(self) -> tuple[np.ndarray, np.ndarray]:
        """Examples that a round of each client processes, and its slowness."""
        assert self._work_fn
        work = self._work_fn()
        return work, self._options.clock.slowness(len(work), self._seed)


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

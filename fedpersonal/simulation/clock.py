"""How long a client's round takes, by a seeded model of its speed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.parts import count_batches, is_in_part
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError

if TYPE_CHECKING:
    from fedpersonal.algorithm import Phase


@dataclasses.dataclass(frozen=True)
class ClientClock:
    """What a client's round takes, in simulated seconds.

    It is `overhead_seconds`, and `example_seconds` for each example of each pass, times the
    client's slowness and the round's jitter, and the time to transfer what it receives and sends.
    Both factors are log-normal with a median of 1.

    Attributes:
        overhead_seconds: What any round takes, such as for a connection.
        example_seconds: What an example takes on a client of median speed.
        speed_spread: Standard deviation of the logarithm of slowness, which a client has for good.
        jitter: The same of what is drawn for a client in each round anew.
        bytes_per_second: What carries what a client receives and sends; None for no time.
    """

    overhead_seconds: float = 1.0
    example_seconds: float = 0.01
    speed_spread: float = 0.5
    jitter: float = 0.1
    bytes_per_second: float | None = None

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if name == "bytes_per_second":
                is_right = value is None or 0 < value < math.inf
            else:
                is_right = 0 <= value < math.inf
            if not is_right:
                raise UserError(f"ClientClock: {name}={value} is out of range.")

    def slowness(self, num_clients: int, seed: int) -> np.ndarray:
        """Returns float64 (num_clients,): as how many times as slow as the median each client is.

        It is `exp(speed_spread * z)`, where `z` are standard normal numbers of `Purpose.SPEEDS`.
        """
        normal = generator(Purpose.SPEEDS, seed).standard_normal(num_clients)
        return np.exp(self.speed_spread * normal)

    def seconds(
        self, examples: np.ndarray, slowness: np.ndarray, luck: np.ndarray, num_bytes: int
    ) -> np.ndarray:
        """Returns the seconds of some clients' round.

        Args:
            examples: (n,) examples that their steps process.
            slowness: (n,) theirs.
            luck: (n,) standard normal numbers, of this round.
            num_bytes: What is sent to a client and back.
        """
        work = examples * self.example_seconds * slowness * np.exp(self.jitter * luck)
        rate = self.bytes_per_second
        return self.overhead_seconds + work + (num_bytes / rate if rate else 0.0)


def count_work(phases: Sequence[Phase], counts: np.ndarray, *, batch_size: int) -> np.ndarray:
    """Returns how many examples the steps of a round process, int64 (clients,).

    Args:
        phases: What a client does; the exact solution of a ridge phase is one pass, and passes that
            grow from round to round count as all of them.
        counts: (clients,) examples that a client has in a round.
        batch_size: Examples of a batch; a client's last one may have fewer.
    """
    num_batches = -(-counts // batch_size)
    missing = num_batches * batch_size - counts
    total = np.zeros(len(counts), np.int64)
    for phase in phases:
        batches = count_batches(phase.data, num_batches)
        steps = getattr(phase, "epochs", 1) * batches
        most = getattr(phase, "max_steps", None)
        if most is not None:
            steps = np.minimum(steps, most)
        # The last batch, which may not be full, is the last one of a pass, too.
        passes = steps // np.maximum(batches, 1)
        has_last = (num_batches > 0) & is_in_part(phase.data, num_batches - 1, num_batches)
        ahead = getattr(phase, "ahead", None)
        # Those of looking ahead are counted as of batches of the same size.
        times = 1 if ahead is None else 1 + ahead.steps
        total += times * (steps * batch_size - passes * has_last * missing)
    return total

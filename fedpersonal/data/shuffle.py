"""The order in which each client takes its examples: shuffled before rounds, or before each pass.

An order is a permutation of the client's examples in the data's order. It follows from the seed,
the round and the client's name alone, so that it is the same however clients are executed, whoever
else takes part, and after a resume.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from fedpersonal.data.splits import is_in_part
from fedpersonal.draws import Purpose, generator, number_of

SHUFFLES = ("never", "rounds", "epochs")


@dataclasses.dataclass(frozen=True)
class Shuffle:
    """Draws the orders of clients' examples.

    Support and query sets keep their examples: a permutation moves examples within each set alone.

    Attributes:
        passes: For each phase of a round that reads an order, the parts of the data that it reads,
            and how many passes it makes at most, each in an order of its own. For one order a
            round, all parts, and one pass.
        is_each_pass: Whether passes differ, or batches are cut once a round.
        batch_size: Examples of a batch.
        seed: The run's seed.
    """

    passes: tuple[tuple[tuple[str, ...], int], ...]
    is_each_pass: bool
    batch_size: int
    seed: int

    @property
    def num_passes(self) -> int:
        """The number of orders of each client in a round."""
        return sum(count for _, count in self.passes)

    def orders(self, client: str, num_examples: int, round_number: int) -> np.ndarray:
        """Returns which example a client takes at each place, int32 (num_passes, num_examples).

        Args:
            client: The client's name.
            num_examples: How many examples it has.
            round_number: >= 0.
        """
        key = number_of(str(client))
        rng = generator(Purpose.ORDER, self.seed, round_number=round_number, client=key)
        orders = np.empty((self.num_passes, num_examples), np.int32)
        first = 0
        for parts, count in self.passes:
            for places in _sets(parts, num_examples, self.batch_size):
                tiled = np.broadcast_to(places, (count, len(places)))
                orders[first : first + count, places] = rng.permuted(tiled, axis=1)
            first += count
        return orders


@functools.lru_cache(maxsize=4096)
def _sets(parts: tuple[str, ...], num_examples: int, batch_size: int) -> tuple[np.ndarray, ...]:
    """Returns the places of a client's examples, set by set: those that are in the same parts."""
    num_batches = -(-num_examples // batch_size)
    batches = np.arange(num_batches)
    labels = np.zeros(num_batches, np.int64)
    for part in parts:
        labels = 2 * labels + is_in_part(part, batches, num_batches)
    of_examples = np.repeat(labels, batch_size)[:num_examples]
    return tuple(np.flatnonzero(of_examples == label) for label in np.unique(labels))

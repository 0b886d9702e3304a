"""The order of each client's examples: shuffled before each round, or before each pass.

An order is a permutation of the client's examples in the data's order. It depends only on the
seed, the round and the client's name, so it is independent of execution and of the other sampled
clients, and equal after a resume.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from fedpersonal.data.splits import is_in_part
from fedpersonal.randomness import Purpose, generator, name_to_number

SHUFFLES = ("never", "rounds", "epochs")


@dataclasses.dataclass(frozen=True)
class Shuffle:
    """A sampler of the orders of clients' examples.

    Support and query sets keep their examples: a permutation moves examples only within a set.

    Attributes:
        passes: The consecutive passes of a round: pairs of a number of passes, each with a separate
            order, and the support parts that divide the data in them. One pass for one order a
            round.
        is_each_pass: Whether each pass has a separate order, or batches are cut once a round.
        batch_size: Examples of a batch.
        seed: The run's seed.
    """

    passes: tuple[tuple[int, tuple[str, ...]], ...]
    is_each_pass: bool
    batch_size: int
    seed: int

    @property
    def num_passes(self) -> int:
        """The number of orders of each client in a round."""
        return sum(count for count, _ in self.passes)

    def orders(
        self, clients: Sequence[str], counts: Sequence[int] | np.ndarray, round_number: int
    ) -> list[np.ndarray]:
        """Returns each client's examples in order, int32 indices (num_passes, its examples).

        Args:
            clients: The clients' names.
            counts: The number of examples of each client.
            round_number: >= 0.
        """
        ends = np.cumsum(counts, dtype=np.int64)
        keys = self._sort_keys(clients, np.asarray(counts, np.int64), round_number)
        place_mask = np.uint64((1 << _num_bits(counts)) - 1)
        orders = []
        for end, count in zip(ends.tolist(), map(int, counts)):
            order, first = np.empty((self.num_passes, count), np.int32), 0
            for number, parts in self.passes:
                passes = slice(first, first + number)
                client_keys = keys[passes, end - count : end]
                for places in _sets(parts, count, self.batch_size):
                    client_order = np.sort(client_keys[:, places], axis=1) & place_mask
                    order[passes, places] = client_order
                first += number
            orders.append(order)
        return orders

    def _sort_keys(
        self, clients: Sequence[str], counts: np.ndarray, round_number: int
    ) -> np.ndarray:
        """Returns a random number for each example in each pass, uint64 (num_passes, examples).

        The last bits of a number are the example's place. A generator for each client would take
        longer than the round.
        """
        random = generator(Purpose.ORDER, self.seed, round_number=round_number)
        state = random.integers(2**64, size=1, dtype=np.uint64)
        names = np.array([name_to_number(str(name)) for name in clients], np.uint64)
        places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        places = places.astype(np.uint64)
        states = _mix_into_hash(np.repeat(_mix_into_hash(state, names), counts), places)
        keys = _mix_into_hash(states, np.arange(self.num_passes, dtype=np.uint64)[:, np.newaxis])
        shift = np.uint64(_num_bits(counts))
        return (keys >> shift << shift) | places


def _num_bits(counts: Sequence[int] | np.ndarray) -> int:
    return int(np.max(counts, initial=0)).bit_length()


def _mix_into_hash(state: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Mixes numbers into hash states, uint64, as `model.noise.fold` does in TensorFlow."""
    x = state + (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@functools.lru_cache(maxsize=4096)
def _sets(
    parts: tuple[str, ...], num_examples: int, batch_size: int
) -> tuple[slice | np.ndarray, ...]:
    """Returns the places of a client's examples by set; examples of a set are in equal parts."""
    if not parts:
        return (slice(None),)
    num_batches = -(-num_examples // batch_size)
    batches = np.arange(num_batches)
    labels = np.zeros(num_batches, np.int64)
    for part in parts:
        labels = 2 * labels + is_in_part(part, batches, num_batches)
    example_labels = np.repeat(labels, batch_size)[:num_examples]
    return tuple(np.flatnonzero(example_labels == label) for label in np.unique(labels))

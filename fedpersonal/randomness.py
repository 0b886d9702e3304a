"""NumPy's random streams: a separate one for each purpose, round and client.

TensorFlow's random numbers, such as initial values, are derived from the seed elsewhere.
"""

from __future__ import annotations

import enum
import hashlib

import numpy as np


class Purpose(enum.IntEnum):
    """The purpose of a stream. The numbers determine the streams; a new purpose gets a new one."""

    SPLIT = 0
    """The part, such as the test, to which a client or an example is assigned."""
    PRETRAINING_TEXTS = 1
    """The texts held out from a base model's training, and the order of the others."""
    PRETRAINED_WEIGHTS = 2
    """The initial weights of a base model."""
    ROUND_CLIENTS = 3
    """The sampled clients of a round, and those that drop out before they train."""
    ROUND_END = 4
    """The clients whose update of a round is lost, and the time that each client takes."""
    SPEEDS = 5
    """The permanent speed of each client."""
    EXAMPLES = 6
    """The examples that a client samples for a round."""
    NEGATIVES = 7
    """The negatives among a client's positives in a round."""
    EPOCH = 8
    """The order of all clients' examples in an epoch."""
    UNSEEN_CLIENTS = 9
    """The clients that write documents and are unseen."""
    FINETUNING = 10
    """The split of a client's examples into those for fine-tuning and those for the test."""
    HISTORY = 11
    """The other utterances of the client that accompany each of its utterances."""
    CANDIDATES = 12
    """The items among which a client's held-out item is ranked."""
    VALIDATION_CLIENTS = 13
    """The validation clients, if there are too many to evaluate."""
    TEST_CLIENTS = 14
    """The test clients, if there are too many to evaluate."""
    TEST_DRAWS = 15
    """The test clients of each repetition of the test."""
    GENERATED_RATINGS = 16
    GENERATED_CORPUS = 17
    GENERATED_DOCUMENTS = 18
    GENERATED_DIALOGUES = 19
    WRITTEN_TEXTS = 20
    """The tokens of generated texts."""
    BOOTSTRAP = 21
    """The clients of each resample."""
    RECOMMENDED_CLIENTS = 22
    """The clients whose recommendations are shown."""
    DOTS = 23
    """The clients in a picture of a report."""
    SETTINGS = 24
    """The settings that a search tries."""
    AUDIT = 25
    """The changes that the audit makes; the number of a check takes the place of the round's."""
    OTHER_USERS = 26
    """The users of the same context whose embeddings replace a user's embedding."""
    MAP_ORDER = 27
    """The order of the points on a map of users, the last in front."""
    NEIGHBOURS = 28
    """The order of equally near neighbours in a search."""
    TRIAL = 29
    """Labels and predictions that test a model's loss and metrics."""
    WRITERS = 30
    """The client that writes each digit, and the style of each client."""
    USERS = 31
    """The users that are kept, if --num_users keeps only a part of a table."""
    TASKS = 32
    """The tasks of each resample in which ranks of methods are averaged."""
    ORDER = 33
    """The order of clients' examples in a round: a number that is mixed with each client's name."""


# One stream for each seed. The keys reproduce published splits and base models.
_ONE_STREAM = {
    Purpose.SPLIT: (),
    Purpose.PRETRAINING_TEXTS: (0,),
    Purpose.PRETRAINED_WEIGHTS: (1,),
}


def generator(
    purpose: Purpose, seed: int, *, round_number: int = 0, client: int = 0
) -> np.random.Generator:
    """Returns the separate random stream of a purpose, round and client.

    The stream is NumPy's default generator of `SeedSequence(seed, spawn_key=(purpose, round,
    client))`. Splits and base models need one stream for each seed and have shorter keys: `()`,
    `(0,)` and `(1,)`.

    Args:
        purpose: The purpose of the random numbers.
        seed: A whole number in [0, 2**128): the run's seed or a secret one.
        round_number: A whole number in [0, 2**32).
        client: The client's index, or another number in [0, 2**64) that identifies the client.
    """
    key = _ONE_STREAM.get(purpose, (int(purpose), round_number, client))
    assert purpose not in _ONE_STREAM or round_number == client == 0, purpose
    # A number beyond these bounds would change the next part of the key.
    assert 0 <= seed < 2**128 and 0 <= round_number < 2**32 and 0 <= client < 2**64
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def name_to_number(name: str) -> int:
    """Returns a number that identifies a client in `generator` by name, not by index."""
    digest = hashlib.blake2b(name.encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")

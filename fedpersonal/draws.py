"""What all random draws of NumPy come from: a stream of its own for each purpose, round and client.

The draws of TensorFlow, such as initial values, follow from the seed elsewhere.
"""

from __future__ import annotations

import enum
import hashlib

import numpy as np


class Purpose(enum.IntEnum):
    """What is drawn. The numbers are part of the streams: a new purpose gets a new one."""

    SPLIT = 0
    """Which part, such as the test, a client or a client's example is dealt to."""
    PRETRAINING_TEXTS = 1
    """The texts held out of a base model's training, and the order of the others."""
    PRETRAINED_WEIGHTS = 2
    """The weights that the training of a base model starts with."""
    ROUND_CLIENTS = 3
    """The clients of a round, and who drops out before working."""
    ROUND_END = 4
    """Whose update of a round is lost, and how long each client takes."""
    SPEEDS = 5
    """How fast each client is for good."""
    EXAMPLES = 6
    """The examples that a client draws for a round."""
    NEGATIVES = 7
    """The negatives among a client's positives in a round."""
    EPOCH = 8
    """The order of everybody's examples in an epoch."""
    UNSEEN_CLIENTS = 9
    """Who writes documents and never takes part."""
    FINETUNING = 10
    """The examples that a client is fine-tuned on, and those that it is tested on."""
    HISTORY = 11
    """What a client has written elsewhere, beside each of its utterances."""
    CANDIDATES = 12
    """The items among which a client's held-out one is ranked."""
    VALIDATION_CLIENTS = 13
    """Validation clients, where there are too many to evaluate."""
    TEST_CLIENTS = 14
    """Test clients, where there are too many to evaluate."""
    TEST_DRAWS = 15
    """The test clients of each draw that the test is repeated with."""
    GENERATED_RATINGS = 16
    GENERATED_CORPUS = 17
    GENERATED_DOCUMENTS = 18
    GENERATED_DIALOGUES = 19
    WRITTEN_TEXTS = 20
    """The tokens of texts that a model writes."""
    BOOTSTRAP = 21
    """The clients of each resample."""
    RECOMMENDED_CLIENTS = 22
    """The clients whose recommendations are shown."""
    DOTS = 23
    """The clients that a report's picture shows."""
    SETTINGS = 24
    """The settings that a search tries."""
    AUDIT = 25
    """What the audit changes; its checks are counted as rounds are."""
    OTHER_USERS = 26
    """The users of the same context whose embeddings are put in place of a user's own."""
    MAP_ORDER = 27
    """Who is drawn above whom on a map of users."""
    NEIGHBOURS = 28
    """The order in which neighbours as near as each other are searched."""
    TRIAL = 29
    """Labels and predictions with which a model's loss and metrics are tried."""
    WRITERS = 30
    """Which client has written which digit, and the style of each."""
    USERS = 31
    """The users of a table that take part in anything, where not all do."""
    TASKS = 32
    """The tasks of each resample, over which ranks of methods are averaged."""
    ORDER = 33
    """The order of clients' examples in a round: a number that is mixed with each one's name."""


# These are drawn once for a seed, and with the keys that published splits and base models had.
_ONCE = {
    Purpose.SPLIT: (),
    Purpose.PRETRAINING_TEXTS: (0,),
    Purpose.PRETRAINED_WEIGHTS: (1,),
}


def generator(
    purpose: Purpose, seed: int, *, round_number: int = 0, client: int = 0
) -> np.random.Generator:
    """Returns the stream of a purpose, round and client, which no other shares.

    It is NumPy's default generator of `SeedSequence(seed, spawn_key=(purpose, round, client))`.
    Splits and base models, which are drawn once for a seed, have shorter keys: `()`, `(0,)` and
    `(1,)`.

    Args:
        purpose: What is drawn.
        seed: A whole number in [0, 2**128), the run's or a secret one.
        round_number: A whole number in [0, 2**32).
        client: The client's index, or another number in [0, 2**64) that tells it from others.
    """
    key = _ONCE.get(purpose, (int(purpose), round_number, client))
    assert purpose not in _ONCE or round_number == client == 0, purpose
    # Beyond these bounds a number would reach into the place of the next one.
    assert 0 <= seed < 2**128 and 0 <= round_number < 2**32 and 0 <= client < 2**64
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def number_of(name: str) -> int:
    """Returns what tells a client's name from others in `generator`, whatever its index is."""
    digest = hashlib.blake2b(name.encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")

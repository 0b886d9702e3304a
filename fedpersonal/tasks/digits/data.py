"""Handwritten digits of clients who write some more often, and each in a style of its own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.labelled_texts import most_frequent_labels
from fedpersonal.data.sources import fingerprint
from fedpersonal.data.splits import split_examples, split_support_query
from fedpersonal.draws import Purpose, generator
from fedpersonal.evaluation.guess import Guess
from fedpersonal.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.tasks.digits.task import DigitRun

NUM_DIGITS = 10
_FRACTIONS = (0.6, 0.2, 0.2)
_WEAKEST = 0.4  # Of a pen, where the strongest writes as the data have it.


@dataclasses.dataclass(frozen=True, eq=False)
class Digits:
    """The images, float32 (n, 8, 8) with values of 0 to 1, and their labels, int32 (n,)."""

    images: np.ndarray
    labels: np.ndarray
    name: str = "digits"

    def summary(self) -> str:
        """Returns a line that says what there is."""
        return f"{self.name}: {len(self.labels):,} images of {NUM_DIGITS} digits"

    def describe(self) -> dict[str, object]:
        """Returns their name and how many there are."""
        return {"dataset": self.name, "num_images": len(self.labels)}

    def fingerprint(self) -> str:
        """Returns what tells these data from others."""
        return fingerprint({"images": self.images, "labels": self.labels})


@dataclasses.dataclass(frozen=True, eq=False)
class DigitData(Data):
    """The images, split for one experiment.

    The features are "image", float32 (n, 8, 8), and "user", the client's index among those who
    train, int32 (n,), 0 for unseen ones. `validation` and `test` are other images of those who
    train.

    Attributes:
        unseen: Clients who never take part, and one half of their images each.
    """

    train: ClientDataset
    unseen: EvaluationSet


def read_digits() -> Digits:
    """Reads the images that come with scikit-learn."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Digits((digits.images / 16).astype(np.float32), digits.target.astype(np.int32))


def write_as_clients(digits: Digits, options: DigitRun) -> ClientDataset:
    """Gives each image to a client, who turns it by a quarter or not and has a pen of its own.

    Args:
        digits: The images.
        options: How many clients there are, how unlike, and the seed.

    Returns:
        The clients, each one's images in random order.
    """
    random, num_clients = generator(Purpose.WRITERS, options.seed), options.num_clients
    shares = random.dirichlet(np.full(num_clients, options.skew), NUM_DIGITS)
    owners = np.array([random.choice(num_clients, p=shares[label]) for label in digits.labels])
    turns = random.integers(0, 4, num_clients)
    strengths = random.uniform(_WEAKEST, 1.0, num_clients)
    images = [np.rot90(i, turns[c]) * strengths[c] for i, c in zip(digits.images, owners)]
    order = np.lexsort([random.random(len(owners)), owners])
    return ClientDataset(
        np.array([f"writer{i}" for i in range(num_clients)]),
        np.append(0, np.cumsum(np.bincount(owners, minlength=num_clients))),
        {"image": np.array(images, np.float32)[order]},
        digits.labels[order],
    )


def split_digits(digits: Digits, options: DigitRun) -> DigitData:
    """Sets the last clients apart, and splits the images of each other one 60/20/20 %."""
    everybody = write_as_clients(digits, options)
    # The clients were drawn alike, so the last of them are as good as any.
    num_seen = round((1 - options.unseen_clients) * everybody.num_clients)
    seen, unseen = np.split(np.arange(everybody.num_clients), [num_seen])
    parts = split_examples(
        _with_user(everybody.subset(seen)), fractions=_FRACTIONS, seed=options.seed, ordered=False
    )
    train, validation, test = parts
    others = _with_user(everybody.subset(unseen), nobody=True)
    return DigitData(
        digits.name,
        train,
        EvaluationSet(train, validation, seen=True),
        EvaluationSet(train, test, seen=True),
        EvaluationSet(*split_support_query(others, batch_size=1, split="aggregated")),
    )


def guess_digits(data: DigitData, part: EvaluationSet) -> dict[str, Guess]:
    """Guesses without a model, and without an image that leaves its client.

    Returns:
        By the guess' name, the accuracy of the digit that each client, and that all have most
        often, and of the label of the client's own image that is nearest by cosine.
    """
    support, query = part.support, part.query
    of_all = np.full(query.num_examples, np.bincount(data.train.labels).argmax())
    each = most_frequent_labels(support)[query.example_clients]
    nearest = each.copy()  # Where a client has no image to look at.
    for client in np.flatnonzero((support.counts > 0) & (query.counts > 0)):
        (own, labels), (asked, _) = support.client(client), query.client(client)
        cosines = _directions(asked["image"]) @ _directions(own["image"]).T
        nearest[query.example_clients == client] = labels[cosines.argmax(1)]
    return {
        "the nearest image of each client's own": Guess.of_labels(query, nearest),
        "each client's most frequent digit": Guess.of_labels(query, each),
        "the most frequent digit": Guess.of_labels(query, of_all),
    }


def _directions(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)


def _with_user(dataset: ClientDataset, *, nobody: bool = False) -> ClientDataset:
    users = dataset.example_clients.astype(np.int32)
    features = {**dataset.features, "user": np.zeros_like(users) if nobody else users}
    return dataclasses.replace(dataset, features=features)

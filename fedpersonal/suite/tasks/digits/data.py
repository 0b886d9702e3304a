"""Handwritten digits of clients with different label frequencies and styles."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import fingerprint
from fedpersonal.data.splits import split_examples, split_support_query
from fedpersonal.evaluation.baselines import Baseline
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.readers.labelled_texts import most_frequent_labels
from fedpersonal.suite.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.suite.tasks.digits.options import DigitRun

NUM_DIGITS = 10
_FRACTIONS = (0.6, 0.2, 0.2)
_WEAKEST = 0.4  # The least strength of a pen; the greatest, 1, leaves images as they are.


@dataclasses.dataclass(frozen=True, eq=False)
class Digits:
    """The images, float32 (n, 8, 8) with values of 0 to 1, and their labels, int32 (n,)."""

    images: np.ndarray
    labels: np.ndarray
    name: str = "digits"

    def summary(self) -> str:
        """Returns a line on the size of the data."""
        return f"{self.name}: {len(self.labels):,} images of {NUM_DIGITS} digits"

    def describe(self) -> dict[str, object]:
        """Returns the name of the data and the number of images."""
        return {"dataset": self.name, "num_images": len(self.labels)}

    def fingerprint(self) -> str:
        """Returns a hash of the data."""
        return fingerprint({"images": self.images, "labels": self.labels})


@dataclasses.dataclass(frozen=True, eq=False)
class DigitData(Data):
    """The images, split for one experiment.

    The features are "image", float32 (n, 8, 8), and "user", int32 (n,), the client's index among
    training clients, 0 for unseen clients. `validation` and `test` are other images of training
    clients.

    Attributes:
        unseen: Unseen clients; half of their images are support sets, half query sets.
    """

    train: ClientDataset
    unseen: EvaluationSet


def read_digits() -> Digits:
    """Reads the images that come with scikit-learn."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Digits((digits.images / 16).astype(np.float32), digits.target.astype(np.int32))


def write_as_clients(digits: Digits, options: DigitRun) -> ClientDataset:
    """Assigns each image to a client, with the client's rotation and pen strength.

    Args:
        digits: The images.
        options: The number of clients, the skew of their labels, and the seed.

    Returns:
        The clients, with each client's images in random order.
    """
    random, num_clients = generator(Purpose.WRITERS, options.seed), options.num_clients
    shares = random.dirichlet(np.full(num_clients, options.skew), NUM_DIGITS)
    writers = np.array([random.choice(num_clients, p=shares[label]) for label in digits.labels])
    rotations = random.integers(0, 4, num_clients)
    strengths = random.uniform(_WEAKEST, 1.0, num_clients)
    images = [np.rot90(i, rotations[c]) * strengths[c] for i, c in zip(digits.images, writers)]
    order = np.lexsort([random.random(len(writers)), writers])
    return ClientDataset(
        np.array([f"writer{i}" for i in range(num_clients)]),
        np.append(0, np.cumsum(np.bincount(writers, minlength=num_clients))),
        {"image": np.array(images, np.float32)[order]},
        digits.labels[order],
    )


def split_digits(digits: Digits, options: DigitRun) -> DigitData:
    """Makes the last clients unseen, and splits the images of each other client 60/20/20 %."""
    clients = write_as_clients(digits, options)
    # All clients have the same distribution, so the last ones are a random sample.
    num_seen = round((1 - options.unseen_clients) * clients.num_clients)
    seen, unseen = np.split(np.arange(clients.num_clients), [num_seen])
    parts = split_examples(
        _with_user(clients.subset(seen)), fractions=_FRACTIONS, seed=options.seed, ordered=False
    )
    train, validation, test = parts
    others = _with_user(clients.subset(unseen), is_unseen=True)
    return DigitData(
        digits.name,
        train,
        EvaluationSet(train, validation, seen=True),
        EvaluationSet(train, test, seen=True),
        EvaluationSet(*split_support_query(others, batch_size=1, split="aggregated")),
    )


def digit_baselines(data: DigitData, part: EvaluationSet) -> dict[str, Baseline]:
    """Returns baselines without a model, for which no image leaves its client.

    Returns:
        Baseline's name to its accuracy. The baselines predict the client's most frequent digit, the
        most frequent digit of all clients, and the label of the image in the client's support set
        that is nearest by cosine.
    """
    support, query = part.support, part.query
    overall = np.full(query.num_examples, np.bincount(data.train.labels).argmax())
    each = most_frequent_labels(support)[query.example_clients]
    nearest = each.copy()  # Remains for clients with an empty support set.
    for client in np.flatnonzero((support.counts > 0) & (query.counts > 0)):
        (images, labels), (queries, _) = support.client(client), query.client(client)
        cosines = _directions(queries["image"]) @ _directions(images["image"]).T
        nearest[query.example_clients == client] = labels[cosines.argmax(1)]
    return {
        "the nearest image of each client's own": Baseline.from_labels(query, nearest),
        "each client's most frequent digit": Baseline.from_labels(query, each),
        "the most frequent digit": Baseline.from_labels(query, overall),
    }


def _directions(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)


def _with_user(dataset: ClientDataset, *, is_unseen: bool = False) -> ClientDataset:
    users = dataset.example_clients.astype(np.int32)
    features = {**dataset.features, "user": np.zeros_like(users) if is_unseen else users}
    return dataclasses.replace(dataset, features=features)

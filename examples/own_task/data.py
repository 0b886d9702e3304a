"""Handwritten digits of clients who write some of them more often, and each in a way of its own."""

from __future__ import annotations

import dataclasses

import numpy as np

import fedpersonal as fp
from fedpersonal.data.sources import fingerprint
from fedpersonal.options import Options, option
from fedpersonal.tasks.options import RunOptions


class DigitOptions(Options):
    """Who writes which digits."""

    num_clients: int = option(50, "Clients.", at_least=10, at_most=200)
    skew: float = option(0.5, "Dirichlet's parameter: the less, the fewer labels.", above=0)
    unseen_clients: float = option(0.2, "Share who never take part.", at_least=0.1, at_most=0.9)
    hidden_units: int = option(32, "Units of the hidden layer.", at_least=1, at_most=10_000)


class DigitRun(DigitOptions, RunOptions):
    """These options, and those of any run."""


@dataclasses.dataclass(frozen=True, eq=False)
class Digits:
    """The images of scikit-learn, (n, 8, 8) with values of 0 to 1, and their labels, (n,)."""

    images: np.ndarray
    labels: np.ndarray
    name: str = "digits"

    def summary(self) -> str:
        """Returns a line that says what there is."""
        return f"{self.name}: {len(self.labels):,} images of {self.labels.max() + 1} digits"

    def describe(self) -> dict[str, object]:
        """Returns their name and how many there are."""
        return {"dataset": self.name, "num_images": len(self.labels)}

    def fingerprint(self) -> str:
        """Returns what tells these data from others."""
        return fingerprint({"images": self.images, "labels": self.labels})


@dataclasses.dataclass(frozen=True, eq=False)
class DigitData:
    """The images, split for one experiment; `unseen` are clients who never take part."""

    name: str
    train: fp.ClientDataset
    validation: fp.EvaluationSet
    test: fp.EvaluationSet
    unseen: fp.EvaluationSet


def read_digits() -> Digits:
    """Reads the images that come with scikit-learn."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Digits((digits.images / 16).astype(np.float32), digits.target.astype(np.int32))


def write_as_clients(digits: Digits, options: DigitRun) -> fp.ClientDataset:
    """Gives each image to a client, who turns it by a quarter or not and has a pen of its own.

    Args:
        digits: The images.
        options: How many clients there are, and how unlike.

    Returns:
        The clients, with the feature `image`, (n, 8, 8) float32, in random order.
    """
    random = np.random.default_rng([options.seed, 1])
    shares = random.dirichlet(np.full(options.num_clients, options.skew), digits.labels.max() + 1)
    owners = np.array([random.choice(options.num_clients, p=shares[k]) for k in digits.labels])
    turns = random.integers(0, 4, options.num_clients)
    strengths = random.uniform(0.4, 1.0, options.num_clients)
    images = np.stack([np.rot90(i, turns[c]) * strengths[c] for i, c in zip(digits.images, owners)])
    order = np.lexsort([random.random(len(owners)), owners])
    return fp.ClientDataset(
        client_ids=[f"writer{i}" for i in range(options.num_clients)],
        offsets=np.append(0, np.cumsum(np.bincount(owners, minlength=options.num_clients))),
        features={"image": images.astype(np.float32)[order]},
        labels=digits.labels[order],
    )


def split_digits(digits: Digits, options: DigitRun) -> DigitData:
    """Sets the last clients apart, and splits the images of each other one 80/10/10 %."""
    everybody = write_as_clients(digits, options)
    # The clients were drawn alike, so the last of them are as good as any.
    num_seen = round((1 - options.unseen_clients) * everybody.num_clients)
    seen, unseen = np.split(np.arange(everybody.num_clients), [num_seen])
    parts = fp.split_examples(everybody.subset(seen), seed=options.seed, ordered=False)
    train, validation, test = parts
    halves = fp.split_support_query(everybody.subset(unseen), batch_size=1, split="aggregated")
    return DigitData(
        digits.name,
        train,
        fp.EvaluationSet(train, validation, seen=True),
        fp.EvaluationSet(train, test, seen=True),
        fp.EvaluationSet(*halves),
    )

"""Interactions of clients with items: held-out interactions, and other items as negatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import check_count
from fedpersonal.data.splits import places_from_end
from fedpersonal.errors import UserError, quoted
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.readers.ratings import Ratings


class Interactions(Ratings):
    """Ratings whose values are ignored: a user's interactions with items."""

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of interactions, users and items."""
        first, *others = super().sizes.items()
        return {"num_interactions": first[1], **dict(others)}

    def summary(self) -> str:
        """Returns a line about the data, with what was left out."""
        note = "; no times: held-out items are sampled at random" if self.times is None else ""
        return super().summary() + note


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Interactions of clients, of which two each are held out.

    Attributes:
        train: The remaining interactions; all clients stay.
        validation: (num_clients,) int32: the items before the last.
        test: (num_clients,) int32: the last items.
    """

    train: ClientDataset
    validation: np.ndarray
    test: np.ndarray


def leave_one_out(dataset: ClientDataset, *, seed: int, ordered: bool) -> HeldOut:
    """Holds out each client's last interaction for the test, and the one before for validation.

    Args:
        dataset: The interactions, each client's in time order if `ordered`, with the feature
            "item".
        seed: >= 0; ignored if `ordered`.
        ordered: True to hold out the last interactions; False for random ones.

    Raises:
        UserError: If a client has fewer than three interactions.
    """
    if (dataset.counts < 3).any():
        index = int(dataset.counts.argmin())
        raise UserError(
            f"client {quoted(dataset.client_ids[index])} has {dataset.counts[index]} interactions; "
            "at least 3 are needed to hold two out"
        )
    places = places_from_end(dataset, seed=seed, ordered=ordered)
    items = dataset.features["item"]
    return HeldOut(dataset.filter_examples(places > 1), items[places == 1], items[places == 0])


@dataclasses.dataclass(frozen=True, eq=False)
class Negatives:
    """A sampler of clients' negatives.

    Attributes:
        avoided: Each client's items that are no negatives, with the feature "item".
        num_items: The number of items.
        per_positive: The number of negatives sampled for each positive, with repeats; None to
            take every possible negative once.
        seed: >= 0.
    """

    avoided: ClientDataset
    num_items: int
    per_positive: int | None
    seed: int

    def sample(
        self, positives: ClientDataset, client_indices: np.ndarray, round_number: int
    ) -> ClientDataset:
        """Returns clients' positives, labelled 1, and negatives, labelled 0, in random order.

        A client's negatives depend only on the seed, the round and the client's index. A client
        without possible negatives gets its positives only.

        Args:
            positives: All clients' positives, with the feature "item" and optionally "user".
            client_indices: (n,) distinct integers in [0, num_clients).
            round_number: >= 0.
        """
        examples = list(self._sample_each(positives, client_indices.tolist(), round_number))
        items = np.concatenate([np.empty(0, np.int32), *(items for items, _ in examples)])
        labels = np.concatenate([np.empty(0, np.float32), *(labels for _, labels in examples)])
        counts = np.array([len(items) for items, _ in examples], np.int64)
        features = {"item": items}
        if "user" in positives.features:
            users = positives.features["user"][positives.offsets[client_indices]]
            features["user"] = np.repeat(users, counts)
        offsets = np.append(0, np.cumsum(counts))
        return ClientDataset(positives.client_ids[client_indices], offsets, features, labels)

    def _sample_each(
        self, positives: ClientDataset, client_indices: Sequence[int], round_number: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields each client's items, (n,) int32, and labels, (n,) float32."""
        is_free = np.ones(self.num_items, bool)
        for index in client_indices:
            chosen, avoided = (
                part.features["item"][slice(*part.offsets[index : index + 2])]
                for part in (positives, self.avoided)
            )
            is_free[avoided] = False
            negatives = np.flatnonzero(is_free)
            is_free[avoided] = True  # Cheaper than a new array for every client.
            rng = generator(Purpose.NEGATIVES, self.seed, round_number=round_number, client=index)
            if self.per_positive is not None and negatives.size:
                size = self.per_positive * chosen.size
                negatives = negatives[rng.integers(negatives.size, size=size)]
            order = rng.permutation(chosen.size + negatives.size)
            items = np.concatenate([chosen, negatives]).astype(np.int32)
            yield items[order], (order < chosen.size).astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Implicit(ClientDataset):
    """Positives and negatives, which are sampled anew in each round; the fields are round 0.

    Attributes:
        positives: The positives.
        negatives: The sampler of negatives.
    """

    positives: ClientDataset
    negatives: Negatives

    @classmethod
    def from_positives(cls, positives: ClientDataset, negatives: Negatives) -> Implicit:
        """Returns positives and negatives; each client has a positive."""
        check_count("num_clients", positives.num_clients, minimum=1)
        first = negatives.sample(positives, np.arange(positives.num_clients), 0)
        return cls(**vars(first), positives=positives, negatives=negatives)

    def in_round(
        self, round_number: int, client_indices: np.ndarray
    ) -> tuple[ClientDataset, np.ndarray]:
        """Returns the clients' examples of a round, with newly sampled negatives."""
        sampled = self.negatives.sample(self.positives, client_indices, round_number)
        features = {name: sampled.features[name] for name in self.features}
        return dataclasses.replace(sampled, features=features), np.arange(len(client_indices))

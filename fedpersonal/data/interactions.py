"""Who chose which item; each client's last ones held out; other items as negatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.ratings import Ratings
from fedpersonal.data.sources import check_count
from fedpersonal.data.splits import places_from_end
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError, quoted


class Interactions(Ratings):
    """Ratings of which it counts alone that they were given."""

    @property
    def sizes(self) -> dict[str, int]:
        """How many interactions, users and items there are."""
        first, *others = super().sizes.items()
        return {"num_interactions": first[1], **dict(others)}

    def summary(self) -> str:
        """A line that says what there is, and what was left out."""
        chance = "; no times: what is held out is drawn by chance" if self.times is None else ""
        return super().summary() + chance


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Interactions without two of each client.

    Attributes:
        train: The others, the clients all there.
        validation: (num_clients,) int32: the item before the last.
        test: (num_clients,) int32: the last one.
    """

    train: ClientDataset
    validation: np.ndarray
    test: np.ndarray


def leave_one_out(dataset: ClientDataset, *, seed: int, ordered: bool) -> HeldOut:
    """Holds out each client's last interaction for the test, and the one before for validation.

    Args:
        dataset: The interactions, each client's in time order if `ordered`, with the feature
            "item".
        seed: >= 0; without meaning if `ordered`.
        ordered: True for the last ones; False for random ones.

    Raises:
        UserError: If a client has fewer than three.
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
    """What a client's negatives are drawn from.

    Attributes:
        avoided: What of each client is no negative, with the feature "item".
        num_items: How many items there are.
        per_positive: How many are drawn for each positive, with repeats; None to take every item
            that may be one, once.
        seed: >= 0.
    """

    avoided: ClientDataset
    num_items: int
    per_positive: int | None
    seed: int

    def draw(
        self, positives: ClientDataset, client_indices: np.ndarray, round_number: int
    ) -> ClientDataset:
        """Returns clients' positives, labelled 1, among negatives, labelled 0, in random order.

        What a client gets depends on the seed, the round and its index alone. A client that has
        chosen every item, so that none may be a negative, gets its positives alone.

        Args:
            positives: All clients' positives, with the features "item" and perhaps "user".
            client_indices: (n,) distinct integers in [0, num_clients).
            round_number: >= 0.
        """
        drawn = list(self._draw_each(positives, client_indices.tolist(), round_number))
        items = np.concatenate([np.empty(0, np.int32), *(own for own, _ in drawn)])
        labels = np.concatenate([np.empty(0, np.float32), *(own for _, own in drawn)])
        counts = np.array([len(own) for own, _ in drawn], np.int64)
        features = {"item": items}
        if "user" in positives.features:
            users = positives.features["user"][positives.offsets[client_indices]]
            features["user"] = np.repeat(users, counts)
        offsets = np.append(0, np.cumsum(counts))
        return ClientDataset(positives.client_ids[client_indices], offsets, features, labels)

    def _draw_each(
        self, positives: ClientDataset, client_indices: Sequence[int], round_number: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields each client's items, (n,) int32, and labels, (n,) float32."""
        free = np.ones(self.num_items, bool)
        for index in client_indices:
            chosen, avoided = (
                part.features["item"][slice(*part.offsets[index : index + 2])]
                for part in (positives, self.avoided)
            )
            free[avoided] = False
            others = np.flatnonzero(free)
            free[avoided] = True  # Cheaper than a new array for every client.
            rng = generator(Purpose.NEGATIVES, self.seed, round_number=round_number, client=index)
            if self.per_positive is not None and others.size:
                others = others[rng.integers(others.size, size=self.per_positive * chosen.size)]
            order = rng.permutation(chosen.size + others.size)
            items = np.concatenate([chosen, others]).astype(np.int32)
            yield items[order], (order < chosen.size).astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Implicit(ClientDataset):
    """Positives among negatives, which each round draws anew; as it stands, it is draw 0.

    Attributes:
        positives: The positives.
        negatives: What the others are drawn from.
    """

    positives: ClientDataset
    negatives: Negatives

    @classmethod
    def of(cls, positives: ClientDataset, negatives: Negatives) -> Implicit:
        """Returns positives of clients of whom each has one, among negatives."""
        check_count("num_clients", positives.num_clients, minimum=1)
        first = negatives.draw(positives, np.arange(positives.num_clients), 0)
        return cls(**vars(first), positives=positives, negatives=negatives)

    def in_round(
        self, round_number: int, client_indices: np.ndarray
    ) -> tuple[ClientDataset, np.ndarray]:
        """As of `ClientDataset`, with new negatives."""
        drawn = self.negatives.draw(self.positives, client_indices, round_number)
        features = {name: drawn.features[name] for name in self.features}
        return dataclasses.replace(drawn, features=features), np.arange(len(client_indices))

"""Texts of many users, each with a label."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from fedpersonal.data.checks import check_named, set_columns
from fedpersonal.data.client_dataset import ClientDataset

BINARY_LABELS = ("0", "1")


# Generated equality would compare arrays for truth, which NumPy refuses: identity it is.
@dataclasses.dataclass(frozen=True, eq=False)
class Documents:
    """Labelled texts of many clients, a client's contiguous and in time order.

    Attributes:
        name: What the texts are, such as "reddit_comments".
        client_ids: (num_clients,) distinct names, str objects.
        offsets: (num_clients + 1,) int64; client `i` owns texts `offsets[i]:offsets[i + 1]`.
        texts: (num_texts,) str objects.
        labels: (num_texts,) int32 in [0, num_labels).
        label_names: (num_labels,) distinct names, str objects; some may not occur.
        report: How many things of which kind were left out when the texts were chosen.

    Raises:
        UserError: If the lengths disagree, the offsets do not ascend from 0, two clients or two
            labels have the same name, or a label has none.
    """

    name: str
    client_ids: np.ndarray
    offsets: np.ndarray
    texts: np.ndarray
    labels: np.ndarray
    label_names: np.ndarray
    report: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        """Makes arrays of the fields and checks them against each other."""
        set_columns(
            self,
            {
                "client_ids": object,
                "offsets": np.int64,
                "texts": object,
                "labels": np.int32,
                "label_names": object,
            },
        )
        self.to_client_dataset()
        check_named(self, "labels", "label_names")

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return self.client_ids.size

    @property
    def num_texts(self) -> int:
        """How many texts all clients have together."""
        return self.texts.size

    @property
    def num_labels(self) -> int:
        """How many labels there are."""
        return self.label_names.size

    @property
    def is_binary(self) -> bool:
        """Whether the labels are 0 and 1 by name, as of a click, and not those of classes."""
        return tuple(self.label_names) == BINARY_LABELS

    def summary(self) -> str:
        """Returns a line that says what there is, and what was left out."""
        left_out = "".join(f"; {count:,} {what}" for what, count in self.report.items())
        return (
            f"{self.name}: {self.num_texts:,} texts of {self.num_clients:,} users, "
            f"{self.num_labels} labels{left_out}"
        )

    def describe(self) -> dict[str, object]:
        """Returns what tells these texts from others, and how many there are."""
        return {
            "dataset": self.name,
            "num_users": self.num_clients,
            "num_texts": self.num_texts,
            "num_labels": self.num_labels,
        }

    def to_client_dataset(self) -> ClientDataset:
        """The texts as examples with the feature "text", (num_texts,) str objects."""
        return ClientDataset(
            client_ids=self.client_ids,
            offsets=self.offsets,
            features={"text": self.texts},
            labels=self.labels,
        )

    def subset(self, client_indices: Sequence[int] | np.ndarray) -> Documents:
        """The same texts of some clients only.

        Args:
            client_indices: (n,) distinct integers in [0, num_clients).

        Returns:
            The texts of these clients, in this order, with the same label names and report.

        Raises:
            UserError: If one names no client or comes twice.
        """
        chosen = self.to_client_dataset().subset(client_indices)
        return dataclasses.replace(
            self,
            client_ids=chosen.client_ids,
            offsets=chosen.offsets,
            texts=chosen.features["text"],
            labels=chosen.labels,
        )


def most_frequent_labels(dataset: ClientDataset) -> np.ndarray:
    """The label that each client has most often.

    Args:
        dataset: Examples whose labels are whole numbers >= 0, (num_examples,) of any dtype.

    Returns:
        (num_clients,) int64: the lowest of equally frequent labels, 0 of a client without any.
    """
    labels = dataset.labels.astype(np.int64)
    num_labels = labels.max(initial=0) + 1
    cells = dataset.example_clients * num_labels + labels
    counts = np.bincount(cells, minlength=dataset.num_clients * num_labels)
    return counts.reshape(dataset.num_clients, num_labels).argmax(axis=1)

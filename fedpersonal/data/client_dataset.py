"""The examples of many clients, held as a few long columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from fedpersonal.data.checks import check_count
from fedpersonal.errors import UserError


# Generated equality would compare arrays for truth, which NumPy refuses: identity it is.
@dataclasses.dataclass(frozen=True, eq=False)
class ClientDataset:
    """Examples of many clients, stored as columns, a client's examples contiguous.

    Attributes:
        client_ids: (num_clients,) distinct names, str objects.
        offsets: (num_clients + 1,) int64; client `i` owns rows `offsets[i]:offsets[i + 1]`.
        features: Columns by name, each (num_examples, ...) of any dtype.
        labels: (num_examples, ...) of any dtype.

    Raises:
        UserError: If the lengths disagree, the offsets do not ascend from 0 to the number of
            examples, or two clients have the same name.
    """

    client_ids: np.ndarray
    offsets: np.ndarray
    features: Mapping[str, np.ndarray]
    labels: np.ndarray

    def __post_init__(self):
        """Makes arrays of the fields and checks them against each other."""
        set_field = object.__setattr__  # The dataclass is frozen for everyone else.
        set_field(self, "client_ids", np.asarray(self.client_ids))
        set_field(self, "offsets", np.asarray(self.offsets))
        set_field(self, "labels", np.asarray(self.labels))
        set_field(self, "features", {k: np.asarray(v) for k, v in self.features.items()})
        self._check_offsets()
        self._check_columns()
        if len(set(self.client_ids.tolist())) < self.num_clients:
            names, counts = np.unique(self.client_ids.astype(str), return_counts=True)
            raise UserError(
                f"client_ids must be distinct, but {names[counts.argmax()]!r} is there"
                f" {counts.max()} times"
            )

    def _check_offsets(self):
        ids, offsets = self.client_ids, self.offsets
        if ids.ndim != 1 or offsets.shape != (ids.size + 1,):
            raise UserError(
                "client_ids must have shape (num_clients,) and offsets (num_clients + 1,),"
                f" got {ids.shape} and {offsets.shape}"
            )
        if offsets.dtype.kind not in "iu":
            raise UserError(f"offsets must be integers, got dtype {offsets.dtype}")
        object.__setattr__(self, "offsets", offsets.astype(np.int64, copy=False))
        if self.offsets[0] != 0 or (np.diff(self.offsets) < 0).any():
            raise UserError("offsets must start at 0 and never descend")

    def _check_columns(self):
        columns = {"labels": self.labels}
        columns.update({f"features[{name!r}]": v for name, v in self.features.items()})
        for name, column in columns.items():
            rows = column.shape[0] if column.ndim else "no"
            if rows != self.num_examples:
                raise UserError(
                    f"{name} has {rows} rows, but the offsets end at {self.num_examples}"
                )

    @property
    def num_clients(self) -> int:
        """How many clients there are, those without examples included."""
        return self.client_ids.size

    @property
    def num_examples(self) -> int:
        """How many examples all clients have together."""
        return int(self.offsets[-1])

    @property
    def counts(self) -> np.ndarray:
        """How many examples each client has: (num_clients,) int64."""
        return np.diff(self.offsets)

    @property
    def example_clients(self) -> np.ndarray:
        """Which client owns each example: (num_examples,) int64 client indices, ascending."""
        return np.repeat(np.arange(self.num_clients), self.counts)

    @property
    def example_positions(self) -> np.ndarray:
        """The place of each example among its client's, from 0: (num_examples,) int64."""
        return np.arange(self.num_examples) - np.repeat(self.offsets[:-1], self.counts)

    def rows(self, client_index: int) -> slice:
        """The slice of rows that a client owns.

        Args:
            client_index: In [0, num_clients).

        Raises:
            UserError: If there is no such client.
        """
        (index,) = self.check_client_indices([client_index])
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def client(self, client_index: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """One client's examples.

        Args:
            client_index: In [0, num_clients).

        Returns:
            The features, each (n, ...), and the labels, (n, ...): views, not copies.

        Raises:
            UserError: If there is no such client.
        """
        rows = self.rows(client_index)
        return {name: v[rows] for name, v in self.features.items()}, self.labels[rows]

    def check_client_indices(self, client_indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns `client_indices` as (n,) int64, once known to name clients of this dataset.

        Args:
            client_indices: (n,) integers in [0, num_clients), repeats allowed.

        Raises:
            UserError: If they are not a list of integers, or one names no client.
        """
        indices = np.asarray(client_indices)
        if indices.size == 0:
            indices = indices.astype(np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise UserError(
                "client_indices must be a list of integers,"
                f" got shape {indices.shape} of dtype {indices.dtype}"
            )
        # One reduction instead of two comparisons: a negative is a huge unsigned number.
        wrong = indices.astype(np.uint64) >= self.num_clients
        if wrong.any():
            raise UserError(
                f"no client has the index {indices[wrong][0]}:"
                f" there are {self.num_clients} clients, counted from 0"
            )
        return indices.astype(np.int64, copy=False)

    def subset(self, client_indices: Sequence[int] | np.ndarray) -> ClientDataset:
        """The same examples of some clients only.

        Args:
            client_indices: (n,) distinct integers in [0, num_clients).

        Returns:
            A dataset of these clients, in this order.

        Raises:
            UserError: If one names no client or comes twice.
        """
        indices = self.check_client_indices(client_indices)
        counts = self.counts[indices]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[indices] - offsets[:-1], counts)
        return ClientDataset(
            client_ids=self.client_ids[indices],
            offsets=offsets,
            features={name: v[rows] for name, v in self.features.items()},
            labels=self.labels[rows],
        )

    def filter_examples(self, mask: np.ndarray) -> ClientDataset:
        """Keeps some examples of each client, and every client even if it keeps none.

        Args:
            mask: (num_examples,) bool, True to keep.

        Raises:
            UserError: If the mask has another shape or dtype.
        """
        mask = np.asarray(mask)
        if mask.shape != (self.num_examples,) or mask.dtype != np.bool_:
            raise UserError(
                f"mask must be bool of shape ({self.num_examples},),"
                f" got {mask.dtype} of shape {mask.shape}"
            )
        kept_before = np.concatenate([[0], np.cumsum(mask)])
        return ClientDataset(
            client_ids=self.client_ids,
            offsets=kept_before[self.offsets],
            features={name: v[mask] for name, v in self.features.items()},
            labels=self.labels[mask],
        )

    def head(self, max_examples: int) -> ClientDataset:
        """Keeps each client's first `max_examples` examples (>= 0), or all if it has fewer."""
        check_count("max_examples", max_examples)
        return self.filter_examples(self.example_positions < max_examples)

    def drop_clients_with_fewer_than(self, min_examples: int) -> ClientDataset:
        """Keeps the clients that have at least `min_examples` examples (>= 0), in order."""
        check_count("min_examples", min_examples)
        return self.subset(np.flatnonzero(self.counts >= min_examples))

"""The examples of many clients, held as a few long columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedpersonal.data.checks import check_count, check_distinct, check_names
from fedpersonal.data.loaded import fingerprint
from fedpersonal.errors import UserError, quoted

_TEXTS = ("string", "bytes", "empty")


# Generated equality would compare arrays for truth, which NumPy refuses: identity it is.
@dataclasses.dataclass(frozen=True, eq=False)
class ClientDataset:
    """Examples of many clients, stored as columns, a client's examples contiguous.

    Fields that do not fit each other are a `UserError`, as is a client's name that has a NUL
    character or is not Unicode.

    Attributes:
        client_ids: (num_clients,) distinct names, str objects.
        offsets: (num_clients + 1,) int64; client `i` owns rows `offsets[i]:offsets[i + 1]`.
        features: Columns by name, each (num_examples, ...) of numbers or of str.
        labels: (num_examples, ...), alike.
    """

    client_ids: np.ndarray
    offsets: np.ndarray
    features: Mapping[str, np.ndarray]
    labels: np.ndarray

    if TYPE_CHECKING:  # What is no array becomes one.

        def __init__(
            self,
            client_ids: npt.ArrayLike,
            offsets: npt.ArrayLike,
            features: Mapping[str, npt.ArrayLike],
            labels: npt.ArrayLike,
        ): ...

    def __post_init__(self):
        if not isinstance(self.features, Mapping):
            kind = type(self.features).__name__
            raise UserError(f"features must be a mapping of names to columns, got a {kind}")
        features = {k: _as_column(f"features[{k!r}]", v) for k, v in self.features.items()}
        object.__setattr__(self, "features", features)  # Frozen for everyone else.
        for field in ("client_ids", "offsets", "labels"):
            object.__setattr__(self, field, _as_column(field, getattr(self, field)))
        self._check_clients()
        columns = {f"features[{name!r}]": column for name, column in features.items()}
        for name, column in {**columns, "labels": self.labels}.items():
            rows = column.shape[0] if column.ndim else "no"
            if rows != self.num_examples:
                raise UserError(f"{name} has {rows} rows; the offsets end at {self.num_examples}")

    def _check_clients(self):
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
        if ids.size and not isinstance(ids[0], str):
            raise UserError(f"client_ids must be str, got {ids[0]!r:.60} of dtype {ids.dtype}")
        object.__setattr__(self, "client_ids", ids.astype(object, copy=False))
        check_distinct("client_ids", ids.tolist())
        check_names("client_ids", ids.tolist())

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

    def client(self, client_index: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns a client's features, each (n, ...), and labels, (n, ...): views, not copies."""
        (index,) = self.check_client_indices([client_index])
        rows = slice(self.offsets[index], self.offsets[index + 1])
        return {name: v[rows] for name, v in self.features.items()}, self.labels[rows]

    def check_client_indices(self, client_indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns indices, repeats allowed, as (n,) int64.

        Raises:
            UserError: If they are not a list of integers, or one is not in [0, num_clients).
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

    def in_round(
        self, round_number: int, client_indices: np.ndarray
    ) -> tuple[ClientDataset, np.ndarray]:
        """Returns a data set, and which of its clients are these ones, as a round takes them.

        They are as in any other round, but for data that are drawn anew in each.

        Args:
            round_number: From 1.
            client_indices: (n,) integers in [0, num_clients).
        """
        del round_number
        return self, client_indices

    def subset(self, client_indices: Sequence[int] | np.ndarray) -> ClientDataset:
        """Returns the same examples of some clients only, in this order.

        Raises:
            UserError: If one of `client_indices`, (n,) integers, names no client or comes twice.
        """
        indices = self.check_client_indices(client_indices)
        rows, offsets = group_rows(self.offsets, indices)
        return self.take(rows, self.client_ids[indices], offsets)

    def filter_examples(self, mask: np.ndarray) -> ClientDataset:
        """Keeps some examples of each client, and every client even if it keeps none.

        Args:
            mask: (num_examples,) bool, True to keep; anything else is a `UserError`.
        """
        mask = np.asarray(mask)
        if mask.shape != (self.num_examples,) or mask.dtype != np.bool_:
            raise UserError(
                f"mask must be bool of shape ({self.num_examples},),"
                f" got {mask.dtype} of shape {mask.shape}"
            )
        kept_before = np.concatenate([[0], np.cumsum(mask)])
        return self.take(mask, self.client_ids, kept_before[self.offsets])

    def take(self, rows: np.ndarray, client_ids: np.ndarray, offsets: np.ndarray) -> ClientDataset:
        """Returns some rows, by indices or a mask, as those of these clients at these offsets."""
        features = {name: column[rows] for name, column in self.features.items()}
        return ClientDataset(client_ids, offsets, features, self.labels[rows])

    def head(self, max_examples: int) -> ClientDataset:
        """Keeps each client's first `max_examples` examples (>= 0), or all if it has fewer."""
        check_count("max_examples", max_examples)
        return self.filter_examples(self.example_positions < max_examples)

    def fingerprint(self) -> str:
        """A short hash of the content, the same for equal content: 16 hexadecimal digits."""
        columns = {f"feature {name}": column for name, column in self.features.items()}
        named = {"labels": self.labels, "client_ids": self.client_ids, "offsets": self.offsets}
        return fingerprint({**columns, **named})


def group_rows(offsets: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists the rows of some groups, where group `i` owns rows `offsets[i]:offsets[i + 1]`.

    Args:
        offsets: (num_groups + 1,) int64, ascending.
        groups: (n,) integers in [0, num_groups), repeats allowed.

    Returns:
        The rows, (m,) int64, group after group, and the groups' offsets among them, (n + 1,).
    """
    counts = np.diff(offsets)[groups]
    taken = np.append(0, np.cumsum(counts)).astype(np.int64)
    return np.arange(taken[-1]) + np.repeat(offsets[groups] - taken[:-1], counts), taken


def _as_column(name: str, values: object) -> np.ndarray:
    """Returns an array of numbers or of str; anything else is a UserError that names it."""
    try:
        column = np.asarray(values)
    except ValueError:  # Of lists of unequal lengths.
        raise UserError(f"{name} must have rows of one shape; pad shorter ones") from None
    if column.dtype == object and pd.api.types.infer_dtype(column, skipna=False) not in _TEXTS:
        example = next(value for value in column.flat if not isinstance(value, str))
        raise UserError(
            f"{name} must be an array of numbers or of str, got objects such as"
            f" {quoted(str(example))} of type {type(example).__name__}"
        )
    return column

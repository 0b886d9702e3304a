"""Labelled texts of users; a label is a class, a click or the context of an utterance."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import pandas as pd

from fedpersonal.data.clients import ClientDataset, group_rows, number_names
from fedpersonal.data.formats import Column
from fedpersonal.data.sources import LoadedData, check_distinct
from fedpersonal.data.tables import read_table, time_columns
from fedpersonal.errors import UserError

BINARY_LABELS = ("0", "1")
_Texts = TypeVar("_Texts", bound="LabelledTexts")


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledTexts(LoadedData):
    """Labelled texts of clients; each client's texts are contiguous and in time order.

    Attributes:
        name: The name of the texts, such as "reddit_comments".
        client_ids: (num_clients,) distinct names, str objects.
        offsets: (num_clients + 1,) int64; client `i` owns texts `offsets[i]:offsets[i + 1]`.
        texts: (num_texts,) str objects.
        labels: (num_texts,) int32 in [0, num_labels).
        label_names: (num_labels,) distinct names, str objects; not all need occur.
        report: Reason to the number of texts or users that were left out.
    """

    nouns: ClassVar[tuple[str, str]] = ("texts", "labels")

    name: str
    client_ids: np.ndarray
    offsets: np.ndarray
    texts: np.ndarray
    labels: np.ndarray
    label_names: np.ndarray
    report: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        dtypes = {"client_ids": object, "offsets": np.int64, "texts": object, "labels": np.int32}
        for field, dtype in {**dtypes, "label_names": object}.items():
            column: np.ndarray = np.asarray(getattr(self, field), dtype)
            if column.ndim != 1:
                raise UserError(f"{field} must have one dimension, got the shape {column.shape}")
            object.__setattr__(self, field, column)
        self.to_client_dataset()
        check_distinct("label_names", self.label_names.tolist())
        wrong = (self.labels < 0) | (self.labels >= self.num_labels)
        if wrong.any():
            raise UserError(
                f"labels must be in [0, {self.num_labels}), the number of label_names, got"
                f" {self.labels[wrong][0]}"
            )

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return self.client_ids.size

    @property
    def num_labels(self) -> int:
        """The number of labels."""
        return self.label_names.size

    @property
    def is_binary(self) -> bool:
        """Whether the labels' names are 0 and 1, as for clicks."""
        return tuple(self.label_names) == BINARY_LABELS

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of texts, users and labels."""
        texts, labels = (f"num_{noun}" for noun in self.nouns)
        return {texts: self.texts.size, "num_users": self.num_clients, labels: self.num_labels}

    def subset(self: _Texts, client_indices: np.ndarray) -> _Texts:
        """Returns the texts of the given clients, with all label names.

        Args:
            client_indices: (n,) integers in [0, num_clients).
        """
        rows, offsets = group_rows(self.offsets, client_indices)
        return dataclasses.replace(
            self,
            client_ids=self.client_ids[client_indices],
            offsets=offsets,
            texts=self.texts[rows],
            labels=self.labels[rows],
        )

    def to_client_dataset(self) -> ClientDataset:
        """Returns the texts as examples with the feature "text", (num_texts,) str objects."""
        return ClientDataset(self.client_ids, self.offsets, {"text": self.texts}, self.labels)


class _RowIndexable(Protocol):
    def __getitem__(self, rows: np.ndarray) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows of a table that become labelled texts.

    Attributes:
        name: The name of the texts.
        users: (n,) names.
        texts: An object that, indexed by rows, (m,) int64 in [0, n), returns (m,) str.
        labels: (n,) names.
        times: (n,) numbers that order a user's rows; rows of equal times keep their order.
        report: Reason to the number of rows that were left out so far.
    """

    name: str
    users: pd.Categorical
    texts: pd.Categorical | _RowIndexable
    labels: pd.Categorical
    times: np.ndarray
    report: collections.Counter[str]

    def keep(self, kept: np.ndarray, left_out: str) -> LabelledRows:
        """Returns the rows of a mask, (n,) bool; the report counts the others as `left_out`."""
        self.report[left_out] += int((~kept).sum())
        columns = ("users", "texts", "labels", "times")
        return dataclasses.replace(self, **{name: getattr(self, name)[kept] for name in columns})

    def group(
        self,
        kind: type[_Texts],
        rows: np.ndarray,
        labels: np.ndarray,
        label_names: np.ndarray,
        *,
        texts: np.ndarray | None = None,
    ) -> _Texts:
        """Groups rows by user, in the order of `number_names`, and sorts each user's rows by time.

        Args:
            kind: The class of the result.
            rows: (m,) int64, the rows to take.
            labels: (m,) indices into `label_names`.
            label_names: The names of labels.
            texts: (m,) str that replace the rows' texts; None to keep these.
        """
        users, client_ids = number_names("user", self.users[rows])
        order = np.lexsort((self.times[rows], users))
        return kind(
            name=self.name,
            client_ids=client_ids,
            offsets=np.append(0, np.cumsum(np.bincount(users))),
            texts=self.texts[rows[order]] if texts is None else texts[order],
            labels=labels[order],
            label_names=label_names,
            report={reason: count for reason, count in self.report.items() if count},
        )


def read_labelled_rows(
    path: str | os.PathLike,
    columns: Sequence[Column],
    time_column: str | None,
    *,
    times: str = "time",
) -> LabelledRows:
    """Reads the good rows of a table and counts the bad rows.

    `columns` are those of users, texts and labels; `times` is the kind of the time column, `time`
    or `order`.
    """
    all_columns = [*columns, *time_columns(time_column, times)]
    table = read_table(path, all_columns, bad_rows="count")
    users, texts, labels = (table.columns[column.name] for column in columns)
    report = collections.Counter(table.report)
    return LabelledRows(table.name, users, texts, labels, table.order(time_column), report)


def most_frequent_labels(dataset: ClientDataset) -> np.ndarray:
    """Returns the most frequent label of each client, (num_clients,) int64.

    Labels are whole numbers >= 0 of any dtype. The lowest of equally frequent labels is taken, and
    0 for a client without examples.
    """
    labels = dataset.labels.astype(np.int64)
    num_labels = labels.max(initial=0) + 1
    cells = dataset.example_clients * num_labels + labels
    counts = np.bincount(cells, minlength=dataset.num_clients * num_labels)
    return counts.reshape(dataset.num_clients, num_labels).argmax(axis=1)

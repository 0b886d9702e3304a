"""The examples of clients, stored as long columns; conversion of tables to clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedpersonal.data.frames import (
    as_column,
    as_frame,
    check_is_complete,
    check_is_name,
    column_values,
    find_columns,
    list_columns,
    stack_columns,
)
from fedpersonal.data.sources import (
    check_count,
    check_distinct,
    check_names,
    fingerprint,
    prefix_errors,
)
from fedpersonal.errors import UserError, join_words, named_arguments, with_count

# The advice that replaces Keras' weights of examples.
IGNORED_WEIGHT = (
    "Weights would be ignored: make them a column of labels, which loss and example_weight of "
    "PartitionedModel read."
)


# eq=False: the generated equality would need the truth value of arrays, which NumPy refuses.
@dataclasses.dataclass(frozen=True, eq=False)
class ClientDataset:
    """Examples of clients, stored as columns; each client's examples are contiguous.

    Fields that contradict each other raise a `UserError`, as does a client's name that has a NUL
    character or is not Unicode.

    Attributes:
        client_ids: (num_clients,) distinct names, str objects.
        offsets: (num_clients + 1,) int64; client `i` owns rows `offsets[i]:offsets[i + 1]`.
        features: Columns by name, each (num_examples, ...) of numbers or of str.
        labels: (num_examples, ...) of numbers or of str.

    Examples:
        Two clients, with three examples and two:

        >>> x = np.arange(10).reshape(5, 2)
        >>> clients = fp.ClientDataset(["ann", "bob"], [0, 3, 5], {"x": x}, [0, 1, 0, 1, 1])
        >>> clients.client(1)
        ({'x': array([[6, 7],
               [8, 9]])}, array([1, 1]))
        >>> clients
        <ClientDataset: 2 clients, 5 examples: x int64[2], labels int64>
    """

    client_ids: np.ndarray
    offsets: np.ndarray
    features: Mapping[str, np.ndarray]
    labels: np.ndarray

    if TYPE_CHECKING:  # The constructor makes arrays of its arguments.

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
        features = {k: as_column(f"features[{k!r}]", v) for k, v in self.features.items()}
        object.__setattr__(self, "features", features)  # The class is frozen for all others.
        for field in ("client_ids", "offsets", "labels"):
            object.__setattr__(self, field, as_column(field, getattr(self, field)))
        self._check_clients()
        columns = {f"features[{name!r}]": column for name, column in features.items()}
        for name, column in {**columns, "labels": self.labels}.items():
            rows = column.shape[0] if column.ndim else "no"
            if rows != self.num_examples:
                raise UserError(f"{name} has {rows} rows; the offsets end at {self.num_examples}")

    def __repr__(self) -> str:
        columns = {**self.features, "labels": self.labels}
        shown = join_words([f"{n} {c.dtype}{[*c.shape[1:]] or ''}" for n, c in columns.items()])
        clients, examples = (
            with_count(self.num_clients, "clients"),
            f"{self.num_examples:,} examples",
        )
        return f"<ClientDataset: {clients}, {examples}: {shown}>"

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
            first = ids[:1].tolist()[0]  # NumPy 2 shows the types of its numbers.
            raise UserError(f"client_ids must be str, got {first!r:.60} of dtype {ids.dtype}")
        object.__setattr__(self, "client_ids", ids.astype(object, copy=False))
        check_distinct("client_ids", ids.tolist())
        check_names("client_ids", ids.tolist())

    @property
    def num_clients(self) -> int:
        """The number of clients, including those without examples."""
        return self.client_ids.size

    @property
    def num_examples(self) -> int:
        """The number of examples of all clients."""
        return int(self.offsets[-1])

    @property
    def counts(self) -> np.ndarray:
        """The number of examples of each client: (num_clients,) int64."""
        return np.diff(self.offsets)

    @property
    def example_clients(self) -> np.ndarray:
        """The client of each example: (num_examples,) int64 client indices, ascending."""
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
        """Returns client indices, repeats allowed, as (n,) int64.

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
        # One comparison instead of two: a negative number is a huge unsigned one.
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
        """Returns the dataset of a round, and the indices of the given clients in it.

        The dataset is the same in each round, except for data that are sampled in each round.

        Args:
            round_number: From 1.
            client_indices: (n,) integers in [0, num_clients).
        """
        del round_number
        return self, client_indices

    def subset(self, client_indices: Sequence[int] | np.ndarray) -> ClientDataset:
        """Returns the dataset of the given clients, in this order.

        Raises:
            UserError: If one of `client_indices`, (n,) integers, names no client or comes twice.
        """
        indices = self.check_client_indices(client_indices)
        rows, offsets = group_rows(self.offsets, indices)
        return self.take(rows, self.client_ids[indices], offsets)

    def filter_examples(self, mask: np.ndarray) -> ClientDataset:
        """Returns the examples of a mask; every client stays, even without examples.

        Args:
            mask: (num_examples,) bool, True to keep an example; anything else raises a `UserError`.
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
        """Returns the dataset of the given rows, divided among the given clients.

        Args:
            rows: Indices of rows, or a mask, bool (num_examples,).
            client_ids: (n,) distinct names.
            offsets: (n + 1,) int64; client `i` owns `rows[offsets[i]:offsets[i + 1]]`.
        """
        features = {name: column[rows] for name, column in self.features.items()}
        return ClientDataset(client_ids, offsets, features, self.labels[rows])

    def head(self, max_examples: int) -> ClientDataset:
        """Keeps each client's first `max_examples` examples (>= 0), or all if it has fewer."""
        check_count("max_examples", max_examples)
        return self.filter_examples(self.example_positions < max_examples)

    def fingerprint(self) -> str:
        """Returns a short hash of the content, equal for equal content: 16 hexadecimal digits."""
        columns = {f"feature {name}": column for name, column in self.features.items()}
        named = {"labels": self.labels, "client_ids": self.client_ids, "offsets": self.offsets}
        return fingerprint({**columns, **named})


def group_rows(offsets: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists the rows of the given groups, where group `i` owns rows `offsets[i]:offsets[i + 1]`.

    Args:
        offsets: (num_groups + 1,) int64, ascending.
        groups: (n,) integers in [0, num_groups), repeats allowed.

    Returns:
        The rows, (m,) int64, group after group, and the groups' offsets among them, (n + 1,).
    """
    counts = np.diff(offsets)[groups]
    taken = np.append(0, np.cumsum(counts)).astype(np.int64)
    return np.arange(taken[-1]) + np.repeat(offsets[groups] - taken[:-1], counts), taken


def number_names(
    what: str, names: pd.Series | pd.Categorical | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers names in sorted order: as numbers if all are whole numbers, else as text.

    The type of `names`, the order of its categories and its index make no difference.

    Args:
        what: The noun of the named things, for messages, such as "user".
        names: (n,) texts or numbers; numbers become text.

    Returns:
        The number of each row's name, (n,) int64, and the distinct names, str objects.

    Raises:
        UserError: If a name is missing, has a NUL character or is not Unicode, or if texts and
            numbers are mixed.
    """
    column = pd.Series(names)
    # Checked first, because pandas confuses such names.
    check_names(f"{what}s", map(str, getattr(column.array, "categories", column)))
    codes, distinct = pd.factorize(column)
    if (codes < 0).any():
        raise UserError(f"row {int(np.argmax(codes < 0)) + 1} names no {what}")
    if len({isinstance(name, str) for name in distinct}) > 1:
        raise UserError(f"rows name {what}s by texts and by numbers; make all texts")
    texts = [str(name) for name in distinct]
    check_distinct(f"{what}s", texts)
    order = np.array(sorted(range(len(texts)), key=_sort_key(texts)), np.int64)
    return np.argsort(order)[codes], np.array(texts, object)[order]


def _sort_key(texts: list[str]) -> Callable[[int], tuple[int, str] | str]:
    """Returns the key function that sorts the indices of texts."""
    # Eighteen digits fit into an int64, and are fast to parse.
    if all(text.isdecimal() and len(text) <= 18 for text in texts):
        return lambda place: (int(texts[place]), texts[place])
    return texts.__getitem__


@named_arguments
def clients_from_table(
    table: pd.DataFrame | Any,
    *,
    client_column: str,
    features: Mapping[str, str | Sequence[str]],
    label_column: str,
) -> ClientDataset:
    """Groups a table's rows by client; within a client they keep their order.

    Args:
        table: A table with an example a row: of pandas or Polars, or anything with
            `__arrow_c_stream__`, such as a table of pyarrow or a relation of DuckDB, for which
            pyarrow must be installed.
        client_column: The column of the clients' names: texts, or numbers, which become text. Its
            type and the order of its categories make no difference.
        features: Name of each input of the model to a column, for an array of shape
            (num_examples,), or to several columns, for (num_examples, columns). Nullable types,
            bools, categories of numbers and objects of numbers become NumPy's numbers; lists of
            equal lengths become rows.
        label_column: The column of labels. Columns may be those of a named index.

    Returns:
        The clients, ordered by name: as numbers if all are whole numbers, else as text.

    Raises:
        UserError: If a column is missing or there twice, is both that of clients and of labels,
            holds neither numbers nor texts, or lacks a value; or if two clients' names cannot
            be distinguished.

    Examples:
        >>> table = pd.DataFrame({"who": ["bob", "ann", "bob"], "hours": [3, 1, 4], "y": [0, 1, 1]})
        >>> clients = fp.clients_from_table(
        ...     table, client_column="who", features={"x": ["hours"]}, label_column="y"
        ... )
        >>> clients.client_ids.tolist(), clients.counts.tolist()
        (['ann', 'bob'], [1, 2])
    """
    check_is_name("client_column", client_column)
    advice = " (vectors of labels: give ClientDataset the arrays)"
    check_is_name("label_column", label_column, advice)
    if client_column == label_column:
        raise UserError(f"client_column and label_column are both {client_column!r}")
    chosen = list_columns(features)
    all_columns = [client_column, label_column]
    for columns in chosen.values():
        all_columns += columns if isinstance(columns, list) else [columns]
    frame = find_columns(as_frame("table", table), all_columns)
    check_is_complete(frame, all_columns)
    with prefix_errors(f"client_column={client_column!r}"):
        numbers, client_ids = number_names("client", frame[client_column])
    frame = frame.iloc[np.argsort(numbers, kind="stable")]
    columns_of = {}
    for name, columns in chosen.items():
        shown = f"features[{name!r}]"
        if not isinstance(columns, list):
            columns_of[name] = column_values(shown, frame[columns])
            continue
        parts = [column_values(f"{shown}, column {column!r},", frame[column]) for column in columns]
        columns_of[name] = stack_columns(shown, parts, columns)
    return ClientDataset(
        client_ids=client_ids,
        offsets=np.append(0, np.cumsum(np.bincount(numbers))),
        features=columns_of,
        labels=column_values(f"label_column={label_column!r}", frame[label_column]),
    )


def clients_from_datasets(
    datasets: Mapping[str, Iterable[Any]] | Sequence[Iterable[Any]],
) -> ClientDataset:
    """Joins datasets of batches, one for each client, as TensorFlow Federated's processes take.

    Args:
        datasets: For each client a `tf.data.Dataset`, or a list, of batches `(x, y)` or
            `OrderedDict(x=x, y=y)`: `x` maps each input of the model to an array (batch, ...), or
            is the array of the only input; `y` are the labels, (batch, ...). Either a mapping by
            client's name, or a list of clients, which are named `client0`, `client1`, ...

    Returns:
        The clients, with their examples in the same order. Batches are cut anew in training.

    Raises:
        UserError: If there is no batch, batches differ in their inputs or shapes, or have
            more than inputs and labels, such as weights of examples.
    """
    if hasattr(datasets, "element_spec"):
        raise UserError(
            "clients_from_datasets takes a dataset for each client, {name: dataset}, and this is a "
            "single dataset."
        )
    if not isinstance(datasets, Mapping):
        datasets = {f"client{number}": dataset for number, dataset in enumerate(datasets)}
    counts, batches = [], []
    for dataset in datasets.values():
        pairs = [_pair(batch) for batch in dataset]
        batches += [
            ({name: np.asarray(column) for name, column in x.items()}, np.asarray(y))
            for x, y in pairs
        ]
        counts.append(sum(len(labels) for _, labels in batches[len(batches) - len(pairs) :]))
    if not batches:
        raise UserError("no client has a batch of examples.")
    names = sorted(batches[0][0])
    if any(sorted(features) != names for features, _ in batches):
        raise UserError(f"not all batches have the inputs {join_words(names)}.")
    try:
        features = {name: np.concatenate([x[name] for x, _ in batches]) for name in names}
        labels = np.concatenate([labels for _, labels in batches])
    except ValueError as error:
        raise UserError(f"batches have columns of different shapes: {error}") from error
    offsets = np.append(0, np.cumsum(counts))
    return ClientDataset(list(datasets), offsets, features, labels)


def _pair(batch: Any) -> tuple[Mapping[str, Any], Any]:
    """Returns a batch's inputs by name, and its labels."""
    parts = [*batch] if isinstance(batch, Mapping) else [*"xy", "sample_weight"][: len(batch)]
    if sorted(parts) != ["x", "y"]:
        hint = f" {IGNORED_WEIGHT}" if "sample_weight" in parts else ""
        raise UserError(f"a batch must be (x, y), or have x and y alone; it has {parts}.{hint}")
    x, y = (batch["x"], batch["y"]) if isinstance(batch, Mapping) else batch
    return (x if isinstance(x, Mapping) else {"x": x}), y

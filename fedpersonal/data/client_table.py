"""A table with a column of clients, or a data set for each client, as a `ClientDataset`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.data.checks import errors_of
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.names import number_names
from fedpersonal.errors import UserError, listed, quoted


def clients_from_table(
    table: pd.DataFrame,
    *,
    client_column: str,
    features: Mapping[str, str | Sequence[str]],
    label_column: str,
) -> ClientDataset:
    """Groups a table's rows by client; within a client they keep their order.

    Args:
        table: A row an example.
        client_column: The column of the clients' names, texts or numbers, which become text. Its
            type, and the order of categories, make no difference.
        features: Name of each input of the model to a column, which gives an array of shape
            (num_examples,), or to several, which give (num_examples, columns).
        label_column: The column of labels.

    Returns:
        The clients, ordered by name: as numbers if all are whole numbers, else as text.

    Raises:
        UserError: If a column is missing or there twice, is both that of clients and of labels, or
            holds neither numbers nor texts, or if a client's name is missing or cannot be told
            from others.
    """
    wanted = {client_column, label_column}
    # A name gives a column of numbers, several in a list one of vectors.
    chosen = {k: v if isinstance(v, str) else list(v) for k, v in features.items()}
    for columns in chosen.values():
        wanted.update([columns] if isinstance(columns, str) else columns)
    missing = sorted(wanted - set(table.columns))
    if missing:
        raise UserError(
            f"the table has no column {missing[0]!r}; it has {listed([*map(str, table.columns)])}"
        )
    twice = table.columns[table.columns.duplicated()]
    if not twice.empty:
        raise UserError(f"the table has two columns called {quoted(str(twice[0]))}")
    if client_column == label_column:
        raise UserError(f"client_column and label_column are both {client_column!r}")
    with errors_of(f"client_column={client_column!r}"):
        numbers, client_ids = number_names("client", table[client_column])
    table = table.iloc[np.argsort(numbers, kind="stable")]
    return ClientDataset(
        client_ids=client_ids,
        offsets=np.append(0, np.cumsum(np.bincount(numbers))),
        features={name: table[columns].to_numpy() for name, columns in chosen.items()},
        labels=table[label_column].to_numpy(),
    )


def clients_from_datasets(
    datasets: Mapping[str, Iterable[Any]] | Sequence[Iterable[Any]],
) -> ClientDataset:
    """Joins data sets of batches, one for each client, as TensorFlow Federated's processes take.

    Args:
        datasets: For each client a `tf.data.Dataset`, or a list, of batches `(x, y)` or
            `OrderedDict(x=x, y=y)`: `x` maps each input of the model to an array (batch, ...), `y`
            are the labels, (batch, ...). By client's name, or a list of clients, who are then named
            `client0`, `client1`, ...

    Returns:
        The clients, with their examples in the same order. Batches are cut anew in training.

    Raises:
        UserError: If there is no batch at all, or batches differ in their inputs or shapes.
    """
    if not isinstance(datasets, Mapping):
        datasets = {f"client{number}": own for number, own in enumerate(datasets)}
    counts, batches = [], []
    for dataset in datasets.values():
        pairs = [(b["x"], b["y"]) if isinstance(b, Mapping) else tuple(b) for b in dataset]
        batches += [
            ({name: np.asarray(column) for name, column in x.items()}, np.asarray(y))
            for x, y in pairs
        ]
        counts.append(sum(len(labels) for _, labels in batches[len(batches) - len(pairs) :]))
    if not batches:
        raise UserError("no client has a batch of examples.")
    names = sorted(batches[0][0])
    if any(sorted(features) != names for features, _ in batches):
        raise UserError(f"not all batches have the inputs {listed(names)}.")
    try:
        features = {name: np.concatenate([own[name] for own, _ in batches]) for name in names}
        labels = np.concatenate([labels for _, labels in batches])
    except ValueError as error:
        raise UserError(f"batches have columns of different shapes: {error}") from error
    offsets = np.append(0, np.cumsum(counts))
    return ClientDataset(list(datasets), offsets, features, labels)

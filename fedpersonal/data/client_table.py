"""A table with a column of clients as examples by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

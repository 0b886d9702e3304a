"""The users' embeddings of a server and of federated training, compared and drawn."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pandas as pd

from experiments.papers.furl.embedding_agreement import (
    label_agreement,
    neighbour_agreement,
    value_agreement,
)
from experiments.papers.runs import Run
from fedpersonal.data.texts.labelled import LabelledTexts, most_frequent_labels
from fedpersonal.saved_model import read_saved_model

_NEIGHBOURS = 10
_TABLE = "user_embedding/embeddings"


def user_embeddings(run: Run) -> pd.DataFrame:
    """Returns the embeddings of the users who have one, a row a user, by the user's name."""
    from fedpersonal.local_state.store import LOCAL_STATE, read_all

    saved = read_saved_model(run.path)
    if _TABLE in saved.weights:
        return pd.DataFrame(saved.weights[_TABLE], index=saved.about["names"]["user"])
    clients, values = read_all(run.path / LOCAL_STATE)
    return pd.DataFrame(values[_TABLE][:, 0], index=clients)


def compare_embeddings(
    server: Run, federated: Run, source: LabelledTexts, path: pathlib.Path
) -> dict[str, Any] | None:
    """Draws both embeddings of the users whom both know, and returns how alike they cluster.

    Args:
        server: The run of a server with a table of users.
        federated: The run whose users have kept theirs.
        source: The texts of both.
        path: The picture.

    Returns:
        A `note` for people and its numbers; None if those users are too few to have neighbours.
    """
    from experiments.papers.furl.embedding_map import plot_embeddings

    first, second = map(user_embeddings, (server, federated))
    both = first.index.intersection(second.index)
    if len(both) <= _NEIGHBOURS:
        return None
    train = server.task.split(source, server.options).train
    places = pd.Index(train.client_ids).get_indexer(both)
    tables = [table.loc[both].to_numpy() for table in (first, second)]
    if source.is_binary:
        positive = np.bincount(train.example_clients, train.labels, train.num_clients)
        rates = (positive / np.maximum(train.counts, 1))[places]
        own = [value_agreement(table, rates, k=_NEIGHBOURS) for table in tables]
        of_users = {"values": rates, "values_name": "share of 1 among a user's labels"}
        what = "rank correlation of a user's share of 1 with the neighbours'"
    else:
        labels = most_frequent_labels(train)[places]
        own = [label_agreement(table, labels, k=_NEIGHBOURS) for table in tables]
        of_users = {"labels": labels, "label_names": source.label_names}
        what = "neighbours with the same most frequent label"
    names = (run.title.partition(",")[0] for run in (server, federated))
    panels = [(n, table, f"{what}: {agreement}") for n, table, agreement in zip(names, tables, own)]
    plot_embeddings(panels, path, title=f"User embeddings on {source.name}", **of_users)
    shared = neighbour_agreement(*tables, k=_NEIGHBOURS)
    found = {"server": own[0], "federated": own[1], "shared_neighbours": shared}
    note = (
        f"User embeddings, {_NEIGHBOURS} nearest neighbours of {len(both):,} users: {what}: "
        f"{own[0]} of the server's, {own[1]} of the users' own. Share of a user's neighbours that "
        f"are the same in both: {shared}."
    )
    agreements = {name: dataclasses.asdict(agreement) for name, agreement in found.items()}
    return {"note": note, "what": what, "num_users": len(both), **agreements}

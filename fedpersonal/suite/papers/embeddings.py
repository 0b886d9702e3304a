"""Compares two embeddings of the same users: their agreement, their relation to labels, and maps.

Agreement is measured on each user's nearest neighbours by Euclidean distance, on which t-SNE's maps
are based, too. Neighbours do not change if an embedding is rotated, mirrored, shifted, or scaled
along all axes at once: equivalent embeddings of two trainings may differ so. The maps are figures 4
and 5 of the FURL paper.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.linalg import orthogonal_procrustes
from scipy.stats import spearmanr
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator
from fedpersonal.report.pictures import COLORS, write_picture, write_title
from fedpersonal.runs.saved import read_saved_model
from fedpersonal.suite.papers.jobs import Job
from fedpersonal.suite.readers.labelled_texts import LabelledTexts, most_frequent_labels

_NEIGHBOURS = 10
_TABLE = "user_embedding/embeddings"
_PANEL_INCHES = 3.9
_KEY_INCHES = 1.5
_NOTE_WIDTH = 56
_OTHERS, _FRAME = "#d4d7db", "#b9bec4"
# Colors span these percentiles: with a few outliers, all other values would have one color.
_COLORED_PERCENTILES = (2, 98)
_MAX_PERPLEXITY = 30
# Number of labels with a color.
_HIGHLIGHTED = 5
# Seed of t-SNE, and of the plotting order of users.
_SEED = 0


def user_embeddings(job: Job) -> pd.DataFrame:
    """Returns the embeddings of the users that have one, one row per user, by the user's name."""
    from fedpersonal.runs.store import LOCAL_STATE, read_all

    saved = read_saved_model(job.path)
    if _TABLE in saved.weights:
        return pd.DataFrame(saved.weights[_TABLE], index=saved.about["names"]["user"])
    clients, values = read_all(job.path / LOCAL_STATE)
    return pd.DataFrame(values[_TABLE][:, 0], index=clients)


def compare_embeddings(
    server: Job, federated: Job, source: LabelledTexts, path: pathlib.Path
) -> dict[str, Any] | None:
    """Draws the embeddings of the users in both jobs, and returns the agreement of neighbours.

    Args:
        server: The job of centralised training, with a table of users.
        federated: The job whose users have kept their embeddings.
        source: The texts of both jobs.
        path: The file of the picture.

    Returns:
        A `note` in words and its numbers; None if too few users are in both jobs.
    """
    first, second = map(user_embeddings, (server, federated))
    both = first.index.intersection(second.index)
    if len(both) <= _NEIGHBOURS:
        return None
    train = server.task.split(source, server.options).train
    places = pd.Index(train.client_ids).get_indexer(both)
    tables = [table.loc[both].to_numpy(np.float64) for table in (first, second)]
    if source.is_binary:
        positive = np.bincount(train.example_clients, train.labels, train.num_clients)
        rates = (positive / np.maximum(train.counts, 1))[places]
        by_table = [value_agreement(table, rates, k=_NEIGHBOURS) for table in tables]
        coloring = {"values": rates, "values_name": "share of 1 among a user's labels"}
        measure = "rank correlation of a user's share of 1 with the neighbours'"
    else:
        labels = most_frequent_labels(train)[places]
        by_table = [label_agreement(table, labels, k=_NEIGHBOURS) for table in tables]
        coloring = {"labels": labels, "label_names": source.label_names}
        measure = "neighbours with the same most frequent label"
    names = (job.title.partition(",")[0] for job in (server, federated))
    panels = [(n, table, f"{measure}: {one}") for n, table, one in zip(names, tables, by_table)]
    plot_embeddings(panels, path, title=f"User embeddings on {source.name}", **coloring)
    shared = neighbour_agreement(*tables, k=_NEIGHBOURS)
    results = {"server": by_table[0], "federated": by_table[1], "shared_neighbours": shared}
    note = (
        f"User embeddings, {_NEIGHBOURS} nearest neighbours of {len(both):,} users: {measure}: "
        f"{by_table[0]} with centralised training, {by_table[1]} with federated training. Share of "
        f"a user's neighbours that are the same in both: {shared}."
    )
    agreements = {name: dataclasses.asdict(agreement) for name, agreement in results.items()}
    return {"note": note, "what": measure, "num_users": len(both), **agreements}


@dataclasses.dataclass(frozen=True)
class Agreement:
    """A measure of agreement, and its expectation by chance.

    Attributes:
        measured: The measure, at most 1.
        chance: Its expectation if the users of the embedding, or of one of two, were shuffled.
    """

    measured: float
    chance: float

    def __str__(self) -> str:
        return f"{self.measured:.2f} (chance {self.chance:.2f})"


def neighbour_agreement(first: np.ndarray, second: np.ndarray, *, k: int) -> Agreement:
    """Returns the share of a user's `k` nearest neighbours that two embeddings agree on.

    Args:
        first: (num_users, dimensions) floats, of more than `k` users.
        second: (num_users, other dimensions) floats of the same users.
        k: Number of neighbours of a user.
    """
    in_first, in_second = _neighbours(first, k, seed=1), _neighbours(second, k, seed=2)
    shared = (in_first[:, :, np.newaxis] == in_second[:, np.newaxis, :]).any(axis=2)
    return Agreement(float(shared.mean()), k / (len(first) - 1))


def label_agreement(embeddings: np.ndarray, labels: np.ndarray, *, k: int) -> Agreement:
    """Returns the share of a user's nearest neighbours that have the same label as the user.

    Arguments are those of `neighbour_agreement`; `labels` are (num_users,) of anything that can be
    sorted.
    """
    alike = labels[_neighbours(embeddings, k)] == labels[:, np.newaxis]
    _, counts = np.unique(labels, return_counts=True)
    pairs = len(labels) * (len(labels) - 1)
    return Agreement(float(alike.mean()), float((counts * (counts - 1)).sum() / pairs))


def value_agreement(embeddings: np.ndarray, values: np.ndarray, *, k: int) -> Agreement:
    """Returns Spearman's rank correlation of a user's value with the mean of the neighbours'.

    Arguments are those of `neighbour_agreement`; `values` are (num_users,) floats, such as click
    rates. If all means are equal, the correlation is NaN.
    """
    means = values[_neighbours(embeddings, k)].mean(axis=1)
    if np.ptp(means) == 0:
        return Agreement(math.nan, 0.0)
    return Agreement(float(spearmanr(values, means)[0]), 0.0)


def _neighbours(embeddings: np.ndarray, k: int, *, seed: int = 0) -> np.ndarray:
    """Returns the rows of each user's nearest neighbours, in no order: integers (num_users, k)."""
    num_users = len(embeddings)
    # The search breaks ties by row. Shuffling makes ties random: otherwise, users with equal
    # embeddings, such as those never trained, would agree between two embeddings.
    shuffled = generator(Purpose.NEIGHBOURS, seed).permutation(num_users)
    nearest = NearestNeighbors(n_neighbors=k).fit(embeddings[shuffled])
    neighbours = np.empty([num_users, k], np.int64)
    neighbours[shuffled] = shuffled[nearest.kneighbors(return_distance=False)]
    return neighbours


def plot_embeddings(
    panels: Sequence[tuple[str, np.ndarray, str]],
    path: str | os.PathLike,
    *,
    title: str,
    labels: np.ndarray | None = None,
    label_names: Sequence[str] = (),
    values: np.ndarray | None = None,
    values_name: str = "",
) -> None:
    """Draws each embedding's t-SNE map, users colored by label or by value.

    The orientation of a map has no meaning, so each is rotated, or mirrored, to fit the first. The
    most frequent labels have a color; users with other labels are gray.

    Args:
        panels: For each panel its title; (num_users, dimensions) floats, of the same users in the
            same order, at least 4; and a note below it.
        path: The PNG file to write; its folder is created.
        title: Title above the panels.
        labels: (num_users,) indices of `label_names`.
        label_names: The names of labels.
        values: (num_users,) floats, instead of labels.
        values_name: Title of the color bar.

    Raises:
        UserError: If embeddings have a single dimension, or are all equal.
    """
    tables = [table for _, table, _ in panels]
    num_users = len(tables[0])
    for (name, *_), table in zip(panels, tables):
        if table.shape[1] < 2 or not np.ptp(table, axis=0).any():
            raise UserError(f"{name} needs 2 dimensions or more, and users who differ")
    size = (_PANEL_INCHES * len(panels) + _KEY_INCHES, _PANEL_INCHES + 1.0)
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    # Users are often sorted, so that without shuffling the last ones would hide the others.
    order = generator(Purpose.MAP_ORDER, _SEED).permutation(num_users)
    if labels is not None:
        colors, is_other = _color_by_label(figure, labels, label_names)
        order = order[np.argsort(~is_other[order], kind="stable")]
    else:
        assert values is not None
        scale = ScalarMappable(Normalize(*np.percentile(values, _COLORED_PERCENTILES)), "viridis")
        colors = scale.to_rgba(values)
        bar = figure.colorbar(scale, ax=axes, extend="both", aspect=28, pad=0.02)
        bar.set_label(values_name)
        bar.outline.set_visible(False)
    for ax, (name, _, note), places in zip(axes, panels, _maps(tables)):
        dots = np.clip(10_000 / num_users, 5, 30)
        ax.scatter(*places[order].T, c=colors[order], s=dots, linewidths=0, alpha=0.85)
        ax.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim", box_aspect=1)
        ax.spines[:].set_color(_FRAME)
        ax.set_title(name, fontsize=11)
        ax.set_xlabel(textwrap.fill(note, _NOTE_WIDTH), fontsize=9, labelpad=6)
    write_title(figure, title)
    write_picture(figure, path)


def _color_by_label(
    figure: Figure, labels: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a legend; returns users' colors, (num_users, 4), and who is gray, (num_users,)."""
    distinct, indices, counts = np.unique(labels, return_inverse=True, return_counts=True)
    frequent = np.argsort(-counts, kind="stable")[:_HIGHLIGHTED]
    palette = np.full(len(distinct), _OTHERS)
    palette[frequent] = COLORS[: len(frequent)]
    is_other = ~np.isin(indices, frequent)
    key = [(str(names[distinct[label]]), palette[label]) for label in frequent]
    key += [("others", _OTHERS)] if is_other.any() else []
    marks = {"linestyle": "", "marker": "o", "markersize": 7}
    handles = [Line2D([], [], color=color, label=name, **marks) for name, color in key]
    figure.legend(handles=handles, loc="outside right center", frameon=False, handletextpad=0.2)
    return to_rgba_array(palette[indices]), is_other


def _maps(tables: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the users' positions on each map, (num_users, 2), around the origin."""
    maps: list[np.ndarray] = []
    for table in tables:
        perplexity = min(_MAX_PERPLEXITY, (len(table) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, init="pca", random_state=_SEED)
        # Its threads wait in busy loops: on a machine with other work, several threads are many
        # times slower than one.
        with threadpool_limits(1, user_api="openmp"):
            places = tsne.fit_transform(table)
        places -= places.mean(axis=0)
        rotation, _ = orthogonal_procrustes(places, maps[0] if maps else places)
        maps.append(places @ rotation)
    return maps

"""Readers of users' labelled texts: tables, posts of Reddit, films of MovieLens."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from fedpersonal.data.sources import check_count, open_tfds, prefix_errors
from fedpersonal.data.tables import count_unusable, named_columns
from fedpersonal.errors import UserError, quoted, with_count
from fedpersonal.suite.readers.labelled_texts import (
    BINARY_LABELS,
    LabelledRows,
    LabelledTexts,
    read_labelled_rows,
)
from fedpersonal.suite.readers.movielens import (
    FILMS_1M_FILES,
    load_movielens_1m,
    load_movielens_100k,
    movielens_1m_file,
    read_films_1m,
    read_films_100k,
)
from fedpersonal.suite.readers.ratings import Ratings

_BINARY = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}


@dataclasses.dataclass(frozen=True)
class DocumentFilter:
    """A filter that keeps frequent labels, then users with enough texts of these labels.

    Attributes:
        num_labels: The maximum number of labels, >= 2: the most frequent ones; of equally frequent
            ones the alphabetically first. None for labels that are 0 or 1, also written 0.0 and
            1.0, or false and true in any case.
        min_texts: Users with fewer texts of these labels are left out, >= 1.
        max_texts: Users with more texts are left out, too, >= `min_texts`; None for no limit.
    """

    num_labels: int | None
    min_texts: int
    max_texts: int | None = None

    def __post_init__(self):
        check_count("min_texts", self.min_texts, minimum=1)
        for name, minimum in (("num_labels", 2), ("max_texts", self.min_texts)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=minimum)

    def documents(self, rows: LabelledRows) -> LabelledTexts:
        """Filters rows, and numbers users and labels.

        Users are ordered by `number_names`, labels by descending frequency among all rows (or "0"
        and "1").

        Raises:
            UserError: If there is only one label, none that is 0 or 1, or no user with an allowed
                number of texts.
        """
        users = rows.users.remove_unused_categories()
        labels = rows.labels.remove_unused_categories()
        if self.num_labels is None:
            label_names, numbers = np.array(BINARY_LABELS, object), _binary_numbers(labels)
            others = "rows with a label other than 0 and 1"
        else:
            label_names, numbers = _most_frequent(labels, self.num_labels)
            others = f"rows of other labels than the {len(label_names)} most frequent"
        row_labels = numbers[labels.codes]
        labelled = row_labels >= 0

        counts = np.bincount(users.codes[labelled], minlength=len(users.categories))
        has_few = counts < self.min_texts
        has_many = counts > (np.inf if self.max_texts is None else self.max_texts)
        if (has_few | has_many).all():
            limit = "" if self.max_texts is None else f" to max_texts={self.max_texts}"
            raise UserError(
                f"no user has min_texts={self.min_texts}{limit} texts of these labels; the "
                f"most that one has is {counts.max(initial=0)}"
            )
        rows.report[others] += int((~labelled).sum())
        rows.report[f"users with fewer than {self.min_texts} texts"] += int(has_few.sum())
        rows.report["texts of these users"] += int(counts[has_few].sum())
        rows.report[f"users with more than {self.max_texts} texts"] += int(has_many.sum())
        rows.report["texts of those users"] += int(counts[has_many].sum())
        kept = np.flatnonzero(labelled & ~(has_few | has_many)[users.codes])
        return rows.group(LabelledTexts, kept, row_labels[kept], label_names)


def read_documents(
    path: str | os.PathLike,
    *,
    user_column: str = "user",
    text_column: str = "text",
    label_column: str = "context",
    time_column: str | None = "time",
    num_labels: int | None = 100,
    min_texts: int = 15,
    max_texts: int | None = None,
) -> LabelledTexts:
    """Reads the labelled texts of a table by `read_table`, which counts bad rows.

    The columns are those of `read_text` and of labels, texts or numbers. The other options are
    those of `DocumentFilter`, which counts in the report what it leaves out.
    """
    limits = DocumentFilter(num_labels=num_labels, min_texts=min_texts, max_texts=max_texts)
    columns = named_columns(
        user_column=user_column, text_column=text_column, label_column=label_column
    )
    rows = read_labelled_rows(path, columns, time_column)
    with prefix_errors(os.fspath(path)):
        return limits.documents(rows)


def _binary_numbers(labels: pd.Categorical) -> np.ndarray:
    """Returns the number of each category, (num_categories,) int32, -1 if it is left out."""
    numbers = [_BINARY.get(label.strip().lower(), -1) for label in labels.categories]
    if max(numbers, default=-1) < 0:
        examples = ", ".join(quoted(label) for label in labels.categories[:3])
        raise UserError(f"without num_labels the labels must be 0 or 1, got such as {examples}")
    return np.array(numbers, np.int32)


def _most_frequent(labels: pd.Categorical, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the names of the kept labels, and numbers as of `_binary_numbers`."""
    if len(labels.categories) < 2:
        label = quoted(labels.categories[0])
        raise UserError(f"all rows have the label {label}; at least 2 are needed")
    counts = np.bincount(labels.codes, minlength=len(labels.categories))
    chosen = np.argsort(-counts, kind="stable")[:num_labels]  # Categories are alphabetical.
    numbers = np.full(counts.size, -1, np.int32)
    numbers[chosen] = np.arange(chosen.size)
    return np.array(labels.categories, object)[chosen], numbers


_URL = "https://zenodo.org/record/1043504/files/corpus-webis-tldr-17.zip?download=1"
_ADVICE = "read your own table of comments instead"


def load_reddit(
    data_dir: str | os.PathLike | None = None,
    *,
    num_labels: int = 256,
    min_texts: int = 150,
    max_texts: int | None = 500,
) -> LabelledTexts:
    """Loads `reddit` of TensorFlow Datasets (3 GB to download, 18 GB prepared) by subreddit.

    These are the posts of Webis-TLDR-17, which have a "tl;dr", not the comments of the FURL paper
    (Bui et al., section 4.1). The options default to the limits of that paper and are those of
    `DocumentFilter`. There are no times: a user's posts keep the order of the dataset, which is
    shuffled. The dataset is read twice, so that only the kept texts need memory. Posts of
    "[deleted]" users, without text or with a NUL character are left out. `data_dir` and errors
    are those of `open_tfds`.
    """
    limits = DocumentFilter(num_labels=num_labels, min_texts=min_texts, max_texts=max_texts)
    read = open_tfds("reddit", title="Reddit", url=_URL, advice=_ADVICE, data_dir=data_dir)
    batches = (
        (
            *(authors, subreddits, [not body.strip() for body in bodies]),
            [b"\0" in b"".join(post) for post in zip(authors, subreddits, bodies)],
        )
        for authors, subreddits, bodies in read(["author", "subreddit", "body"])
    )
    users, labels, empty, has_nul = map(np.concatenate, zip(*batches))
    unusable = {
        "posts of deleted users": users == b"[deleted]",
        "posts without user": users == b"",
        "posts without subreddit": labels == b"",
        "posts without text": empty,
        "posts with a NUL character": has_nul,
    }
    report: collections.Counter[str] = collections.Counter()
    usable = count_unusable(unusable, report)
    if not usable.any():
        reasons = ", ".join(with_count(count, what) for what, count in report.items() if count)
        raise UserError(f"reddit: no post can be used: {reasons}")
    rows = LabelledRows(
        "reddit",
        users=pd.Categorical(_decoded(users[usable])),
        texts=_Bodies(read, np.flatnonzero(usable)),
        labels=pd.Categorical(_decoded(labels[usable])),
        times=np.zeros(int(usable.sum())),
        report=report,
    )
    with prefix_errors("reddit"):
        return limits.documents(rows)


@dataclasses.dataclass(frozen=True)
class _Bodies:
    """The texts of selected rows of the dataset, which are read when they are indexed."""

    _read: Callable[[Sequence[str]], Iterator[tuple[np.ndarray, ...]]]
    _rows: np.ndarray

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        rows, place = np.unique(self._rows[indices], return_inverse=True)
        texts, start = [], 0
        for (bodies,) in self._read(["body"]):
            first, last = np.searchsorted(rows, [start, start + len(bodies)])
            texts.append(_decoded(bodies[rows[first:last] - start]))
            start += len(bodies)
        return np.concatenate(texts)[place]


def _decoded(texts: np.ndarray) -> np.ndarray:
    return np.array([text.decode(errors="replace") for text in texts], object)


LIKED = 4.0
"""The lowest rating, in stars, of a film that a user likes."""


def load_films_100k(*, min_texts: int = 15, max_texts: int | None = None) -> LabelledTexts:
    """Loads the films of MovieLens-100K from the installed package `recbole`.

    Args:
        min_texts: Users with fewer ratings are left out, >= 1.
        max_texts: Users with more ratings are left out, too; None for no limit.

    Returns:
        A text for each rating, in time order: the film's title, year and genres. Its label is "1"
        from `LIKED` stars on, else "0".

    Raises:
        UserError: If the package is missing, or no user has an allowed number of ratings.
    """
    films = {item: " ".join(filter(None, parts)) for item, *parts in read_films_100k()}
    return films_liked(load_movielens_100k(), films, min_texts=min_texts, max_texts=max_texts)


def load_films_1m(
    data_dir: str | os.PathLike, *, min_texts: int = 15, max_texts: int | None = None
) -> LabelledTexts:
    """Loads the films of MovieLens-1M from `movies.dat` and the ratings in its folder.

    Args:
        data_dir: A folder with `movies.dat`, as published or in UTF-8, and ratings as of
            `load_movielens_1m`, itself or in its subfolder `ml-1m`; or that file.
        min_texts: As of `load_films_100k`.
        max_texts: As of `load_films_100k`.

    Returns:
        The texts, as of `load_films_100k`; ratings without times are in the order of the file.
    """
    path = movielens_1m_file(data_dir, FILMS_1M_FILES)
    films = {i: f"{title} {genres.replace('|', ' ')}" for i, title, genres in read_films_1m(path)}
    ratings = load_movielens_1m(os.path.dirname(path))
    return films_liked(ratings, films, min_texts=min_texts, max_texts=max_texts)


def films_liked(
    ratings: Ratings, films: Mapping[str, str], *, min_texts: int, max_texts: int | None
) -> LabelledTexts:
    """Makes labelled texts of ratings and of the films' texts by item name.

    The other arguments, the result and errors are those of `load_films_100k`. Ratings of films
    without a text are counted in the report.
    """
    texts = np.array([films.get(name, "") for name in ratings.item_ids], object)[ratings.items]
    liked = (ratings.ratings >= LIKED).astype(np.int8)
    rows = LabelledRows(
        f"{ratings.name}-films",
        users=pd.Categorical.from_codes(ratings.users, ratings.user_ids),
        texts=texts,
        labels=pd.Categorical.from_codes(liked, BINARY_LABELS),
        times=np.arange(liked.size),
        report=collections.Counter(ratings.report),
    ).keep(texts != "", "ratings of films without a text")
    with prefix_errors(ratings.name):
        return DocumentFilter(None, min_texts, max_texts).documents(rows)

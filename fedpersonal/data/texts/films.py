"""Films of MovieLens as texts, and which of them a user likes."""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping

import numpy as np
import pandas as pd

from fedpersonal.data.checks import errors_of
from fedpersonal.data.ratings.movielens import (
    load_movielens_1m,
    load_movielens_100k,
    movielens_1m_file,
)
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.data.ratings.titles import FILMS_1M_FILES, read_films_1m, read_films_100k
from fedpersonal.data.texts.documents import DocumentFilter
from fedpersonal.data.texts.labelled import BINARY_LABELS, LabelledRows, LabelledTexts

LIKED = 4.0
"""Stars from which on a user likes a film."""


def load_films_100k(*, min_texts: int = 15, max_texts: int | None = None) -> LabelledTexts:
    """Loads the films of MovieLens-100K, which the package `recbole` brings.

    Args:
        min_texts: Users with fewer ratings are left out, >= 1.
        max_texts: Users with more are left out, too; None for no such limit.

    Returns:
        A text for each rating, of the film's title, year and genres, in the order of time; its
        label is "1" from `LIKED` stars on, else "0".

    Raises:
        UserError: If the package is missing, or no user has as many ratings as wanted.
    """
    films = {item: " ".join(filter(None, parts)) for item, *parts in read_films_100k()}
    return films_liked(load_movielens_100k(), films, min_texts=min_texts, max_texts=max_texts)


def load_films_1m(
    data_dir: str | os.PathLike, *, min_texts: int = 15, max_texts: int | None = None
) -> LabelledTexts:
    """Loads the films of MovieLens-1M from `movies.dat` and the ratings beside it.

    Args:
        data_dir: A folder with `movies.dat`, as published or in UTF-8, and ratings as of
            `load_movielens_1m`, itself or in its subfolder `ml-1m`; or that file.
        min_texts: Options, result and errors are as of `load_films_100k`; ratings without times
            are in the order of the file.
        max_texts: Alike.
    """
    path = movielens_1m_file(data_dir, FILMS_1M_FILES)
    films = {i: f"{title} {genres.replace('|', ' ')}" for i, title, genres in read_films_1m(path)}
    ratings = load_movielens_1m(os.path.dirname(path))
    return films_liked(ratings, films, min_texts=min_texts, max_texts=max_texts)


def films_liked(
    ratings: Ratings, films: Mapping[str, str], *, min_texts: int, max_texts: int | None
) -> LabelledTexts:
    """Makes labelled texts of ratings and the texts of films, by the items' names.

    The other arguments, the result and errors are as of `load_films_100k`; ratings of films without
    a text are counted in the report.
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
    ).only(texts != "", "ratings of films without a text")
    with errors_of(ratings.name):
        return DocumentFilter(None, min_texts, max_texts).documents(rows)

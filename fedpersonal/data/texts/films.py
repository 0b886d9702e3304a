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
    movielens_100k_file,
)
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.data.tables.files import Column
from fedpersonal.data.tables.lines import open_bytes
from fedpersonal.data.tables.reading import read_table
from fedpersonal.data.texts.documents import DocumentFilter
from fedpersonal.data.texts.labelled import BINARY_LABELS, LabelledRows, LabelledTexts
from fedpersonal.errors import UserError

LIKED = 4.0
"""Stars from which on a user likes a film."""

FILMS_1M_FILES = ("movies.dat", "ml-1m/movies.dat")


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
    file = movielens_100k_file("item")
    names = ("movie_title:token_seq", "release_year:token", "class:token_seq")
    columns = [Column("item_id:token"), *(Column(name, may_be_empty=True) for name in names)]
    items, *parts = read_table(file, columns, bad_rows="refuse").columns.values()
    texts = (" ".join(filter(None, text)) for text in zip(*parts))
    films = dict(zip(items, texts))
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
    with open_bytes(path) as file:
        content = file.read()
    try:
        lines = content.decode()
    except UnicodeDecodeError:
        lines = content.decode("latin-1")
    films = {}
    for number, line in enumerate(lines.splitlines(), start=1):
        parts = line.split("::")
        if len(parts) != 3:
            raise UserError(f"{path}, line {number}: MovieID::Title::Genres expected")
        films[parts[0]] = f"{parts[1]} {parts[2].replace('|', ' ')}"
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

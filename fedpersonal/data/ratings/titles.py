"""Titles of MovieLens' films, by the items' names."""

from __future__ import annotations

import os

from fedpersonal.data.ratings.movielens import (
    MOVIELENS_1M_FILES,
    movielens_1m_file,
    movielens_100k_file,
)
from fedpersonal.data.tables.lines import Column, open_bytes
from fedpersonal.data.tables.reading import read_table
from fedpersonal.errors import UserError

FILMS_1M_FILES = ("movies.dat", "ml-1m/movies.dat")


def item_titles(source: str, path: str | None) -> dict[str, str]:
    """Returns what titles there are for ratings of `movielens.load`, which takes the same.

    Nothing but the look of a report depends on them: a file of films that is missing or cannot be
    read has none.
    """
    try:
        if source == "movielens_100k":
            films = read_films_100k()
            return {i: f"{title} ({year})" if year else title for i, title, year, _ in films}
        if source == "movielens_1m" and path:
            folder = os.path.dirname(movielens_1m_file(path, MOVIELENS_1M_FILES))
            films_1m = read_films_1m(os.path.join(folder, FILMS_1M_FILES[0]))
            return {item: title for item, title, _ in films_1m}
    except UserError:
        pass
    return {}


def read_films_100k() -> list[tuple[str, str, str, str]]:
    """Returns each film of MovieLens-100K: item, title, year and genres.

    Raises:
        UserError: If the package that has them is missing.
    """
    names = ("movie_title:token_seq", "release_year:token", "class:token_seq")
    columns = [Column("item_id:token"), *(Column(name, may_be_empty=True) for name in names)]
    table = read_table(movielens_100k_file("item"), columns, bad_rows="refuse")
    return [*zip(*table.columns.values())]


def read_films_1m(path: str) -> list[tuple[str, str, str]]:
    """Returns each film of a `movies.dat`, as published or in UTF-8: item, title and genres.

    Raises:
        UserError: If it cannot be read, or a line of it is something else.
    """
    with open_bytes(path) as file:
        content = file.read()
    try:
        lines = content.decode()
    except UnicodeDecodeError:
        lines = content.decode("latin-1")
    films = []
    for number, line in enumerate(lines.splitlines(), start=1):
        parts = line.split("::")
        if len(parts) != 3:
            raise UserError(f"{path}, line {number}: MovieID::Title::Genres expected")
        films.append((parts[0], parts[1], parts[2]))
    return films

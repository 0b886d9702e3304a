"""The choice of a table's users: all, those that a file names, or a random sample."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import pandas as pd

from fedpersonal.data.formats import UTF_8
from fedpersonal.data.rows import Lines
from fedpersonal.data.sources import check_count, is_unicode
from fedpersonal.errors import UserError, quoted, with_count
from fedpersonal.randomness import Purpose, generator

if TYPE_CHECKING:
    from fedpersonal.suite.readers.labelled_texts import LabelledTexts
    from fedpersonal.suite.readers.ratings import Ratings
    from fedpersonal.suite.readers.sentences import TextCorpus

DataT = TypeVar("DataT", bound="Ratings | TextCorpus | LabelledTexts")


def choose_users(
    data: DataT,
    *,
    num_users: int | None,
    users_file: str | None,
    seed: int,
    encoding: str = UTF_8,
) -> DataT:
    """Returns the data of the chosen users; the report counts the others.

    Args:
        data: The data of all users.
        num_users: The number of users to sample, >= 1; a larger sample contains a smaller one of
            the same seed. None for all users.
        users_file: A text file with the name of a user a line; other users are left out. None for
            no file.
        seed: >= 0, the seed of the sample.
        encoding: The encoding of the file.

    Raises:
        UserError: If the file cannot be read, is not of its encoding or names an unknown user, or
            there are fewer users than `num_users`.
    """
    ids, others = data.client_ids, {}
    chosen = np.arange(ids.size)
    if users_file is not None:
        chosen = _named_users(users_file, encoding, data)
        others["users who are not in --users_file"] = ids.size - chosen.size
    if num_users is not None:
        check_count("num_users", num_users, minimum=1)
        if num_users > chosen.size:
            source = users_file or data.name
            raise UserError(
                f"--num_users is {num_users}, but {source} has {with_count(chosen.size, 'users')}."
            )
        others["users who were not sampled"] = chosen.size - num_users
        chosen = generator(Purpose.USERS, seed).permutation(chosen)[:num_users]
    if not others:
        return data
    report = {**data.report, **{reason: count for reason, count in others.items() if count}}
    subset = data.subset(np.sort(chosen))
    return cast("DataT", dataclasses.replace(subset, report=report))


def _named_users(
    path: str, encoding: str, data: Ratings | TextCorpus | LabelledTexts
) -> np.ndarray:
    """Returns the indices of the users that a file names, distinct, int64 (n,)."""
    lines: dict[str, int] = {}
    file = Lines(path, encoding)
    for number, line in enumerate(file, start=1):
        file.start_row()
        if not is_unicode(line):
            raise UserError(
                f"--users_file: {path}, line {number}: not {encoding}; --encoding says which "
                "encoding the file and the table have."
            )
        if line.strip():
            lines.setdefault(line.strip(), number)
    if not lines:
        raise UserError(f"--users_file={path}: it is empty; give the name of a user a line.")
    places = pd.Index(data.client_ids).get_indexer(pd.Index([*lines], dtype=object))
    unknown = [name for name, place in zip(lines, places) if place < 0]
    if unknown:
        raise UserError(
            f"--users_file: {path}, line {lines[unknown[0]]}: {quoted(unknown[0])} is none of the "
            f"{with_count(len(data.client_ids), 'users')} of {data.name} with enough examples; "
            f"{len(unknown):,} of the file's {with_count(len(lines), 'names')} are not."
        )
    return places

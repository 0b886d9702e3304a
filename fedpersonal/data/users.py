"""Which users of a table take part: all, those that a file names, or some drawn by chance."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import pandas as pd

from fedpersonal.data.formats import UTF_8
from fedpersonal.data.rows import Lines
from fedpersonal.data.sources import check_count, is_unicode
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError, counted, quoted

if TYPE_CHECKING:
    from fedpersonal.data.labelled_texts import LabelledTexts
    from fedpersonal.data.ratings import Ratings
    from fedpersonal.data.sentences import TextCorpus

DataT = TypeVar("DataT", bound="Ratings | TextCorpus | LabelledTexts")


def choose_users(
    data: DataT,
    *,
    num_users: int | None,
    users_file: str | None,
    seed: int,
    encoding: str = UTF_8,
) -> DataT:
    """Returns the data of some users; the report counts the others.

    Args:
        data: Those of all users.
        num_users: Draws so many, >= 1, those of a smaller number among them; None for all.
        users_file: A text file with the name of a user a line, who alone can be drawn; None for
            all users.
        seed: >= 0, of the draw.
        encoding: Of that file.

    Raises:
        UserError: If the file cannot be read, is not of its encoding or names somebody else, or
            there are fewer users.
    """
    ids, others = data.client_ids, {}
    chosen = np.arange(ids.size)
    if users_file is not None:
        chosen = _named(users_file, encoding, data)
        others["users who are not in --users_file"] = ids.size - chosen.size
    if num_users is not None:
        check_count("num_users", num_users, minimum=1)
        if num_users > chosen.size:
            of = users_file or data.name
            raise UserError(
                f"--num_users is {num_users}, but {of} has {counted(chosen.size, 'users')}."
            )
        others["users who were not drawn"] = chosen.size - num_users
        chosen = generator(Purpose.USERS, seed).permutation(chosen)[:num_users]
    if not others:
        return data
    report = {**data.report, **{what: count for what, count in others.items() if count}}
    some = data.subset(np.sort(chosen))
    return cast("DataT", dataclasses.replace(some, report=report))


def _named(path: str, encoding: str, data: Ratings | TextCorpus | LabelledTexts) -> np.ndarray:
    """Returns the places of the users that a file names, distinct, int64 (n,)."""
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
            f"{counted(len(data.client_ids), 'users')} of {data.name} with enough examples; "
            f"{len(unknown):,} of the file's {counted(len(lines), 'names')} are not."
        )
    return places

"""Reddit posts and their subreddits, from TensorFlow Datasets."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from fedpersonal.data.checks import errors_of
from fedpersonal.data.tables.downloads import open_tfds
from fedpersonal.data.tables.reading import count_unusable
from fedpersonal.data.texts.documents import DocumentFilter
from fedpersonal.data.texts.labelled import LabelledRows, LabelledTexts
from fedpersonal.errors import UserError, counted

_URL = "https://zenodo.org/record/1043504/files/corpus-webis-tldr-17.zip?download=1"
_ADVICE = "read an own table of comments instead"


def load_reddit(
    data_dir: str | os.PathLike | None = None,
    *,
    num_labels: int = 256,
    min_texts: int = 150,
    max_texts: int | None = 500,
) -> LabelledTexts:
    """Loads `reddit` of TensorFlow Datasets (3 GB to download, 18 GB prepared) by subreddit.

    These are the posts of Webis-TLDR-17, those with a "tl;dr", and not the comments of the FURL
    paper (Bui et al., section 4.1), to whose limits, those of `DocumentFilter`, the options
    default. There are no times: a user's posts keep the order of the data set, which has been
    shuffled. It is read twice, so that only the texts that are kept need memory. Posts of
    "[deleted]" users, those without text and those with a NUL character are left out. `data_dir`
    and errors are as of `open_tfds`.
    """
    wanted = DocumentFilter(num_labels=num_labels, min_texts=min_texts, max_texts=max_texts)
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
        reasons = ", ".join(counted(count, what) for what, count in report.items() if count)
        raise UserError(f"reddit: no post can be used: {reasons}")
    rows = LabelledRows(
        "reddit",
        users=pd.Categorical(_decoded(users[usable])),
        texts=_Bodies(read, np.flatnonzero(usable)),
        labels=pd.Categorical(_decoded(labels[usable])),
        times=np.zeros(int(usable.sum())),
        report=report,
    )
    with errors_of("reddit"):
        return wanted.documents(rows)


@dataclasses.dataclass(frozen=True)
class _Bodies:
    """The texts of some rows of the data set, which are read when they are asked for."""

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

"""Texts as bags of hashed words and pairs of words."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedpersonal.data.checks import check_count

PADDING = 0
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class HashedWords:
    """Words without a vocabulary: each has the number of its bucket, which others may share.

    Attributes:
        num_buckets: How many buckets there are, >= 1; their ids follow `PADDING` 0.
    """

    num_buckets: int

    def __post_init__(self):
        check_count("num_buckets", self.num_buckets, minimum=1)

    @property
    def size(self) -> int:
        """How many ids there are: the rows of an embedding."""
        return self.num_buckets + 1

    def encode(self, texts: Sequence[str] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The distinct words and pairs of neighbouring words of whole texts, in lower case.

        A word is a run of letters, digits and underscores. Words come before pairs, both as they
        first occur. An id is 1 more than the CRC-32 of the UTF-8 text, a pair's with one space
        between its words, modulo the number of buckets.

        Returns:
            Ids, (n, longest) int32 in [0, size), padded at the end by `PADDING`, at least one wide;
            and how many each text has, (n,) int32.
        """
        # A title is the text of all who rate the film.
        rows, distinct = pd.factorize(np.asarray(texts, object))
        bags = [self._ids(text) for text in distinct]
        counts = np.fromiter(map(len, bags), np.int32, len(bags))
        ids = np.full((len(bags), counts.max(initial=1)), PADDING, np.int32)
        ids[np.arange(ids.shape[1]) < counts[:, np.newaxis]] = [i for bag in bags for i in bag]
        return ids[rows], counts[rows]

    def _ids(self, text: str) -> list[int]:
        words = _WORD.findall(text.lower())
        pairs = map(" ".join, zip(words, words[1:]))
        # The pattern matches no surrogate, so that all of it can be encoded.
        bag = dict.fromkeys([*words, *pairs])
        return [1 + zlib.crc32(text.encode()) % self.num_buckets for text in bag]

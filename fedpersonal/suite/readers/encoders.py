"""Encoders of texts as numbers: of their characters, or of hashes of their words."""

from __future__ import annotations

import collections
import dataclasses
import sys
import zlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedpersonal.data.sources import check_count, check_distinct
from fedpersonal.suite.readers.words import find_words, lower_cased

PADDING = 0
UNKNOWN = 1
NUM_SPECIAL = 2


@dataclasses.dataclass(frozen=True)
class CharacterVocabulary:
    """A vocabulary of characters; their ids follow `PADDING` 0 and `UNKNOWN` 1.

    Attributes:
        characters: Distinct lower-case characters, the most frequent first.
    """

    characters: str

    def __post_init__(self):
        check_distinct("characters", self.characters)

    @property
    def size(self) -> int:
        """The number of ids: the rows of an embedding."""
        return len(self.characters) + NUM_SPECIAL

    def encode(self, texts: Sequence[str] | np.ndarray, *, length: int) -> np.ndarray:
        """Returns the ids of the first `length` >= 1 characters of texts, in lower case.

        Returns:
            (len(texts), length) int32 in [0, size), padded at the end by `PADDING`. An empty text
            is one unknown character, because a recurrent layer that skips padding needs input.
        """
        check_count("length", length, minimum=1)
        ids = np.full(sys.maxunicode + 1, UNKNOWN, np.int32)
        ids[_code_points([self.characters])] = np.arange(NUM_SPECIAL, self.size)
        kept = [text.lower()[:length] for text in texts]
        lengths = np.fromiter(map(len, kept), np.int64, len(kept))
        encoded = np.full((len(kept), length), PADDING, np.int32)
        encoded[np.arange(length) < lengths[:, None]] = ids[_code_points(kept)]
        encoded[lengths == 0, 0] = UNKNOWN
        return encoded


def build_characters(
    texts: Sequence[str] | np.ndarray, *, num_characters: int = 128
) -> CharacterVocabulary:
    """Makes a vocabulary of the most frequent characters of training texts.

    Args:
        texts: (n,) str, counted in lower case.
        num_characters: The maximum number, >= 1; among equally frequent characters those with the
            lowest code points.
    """
    check_count("num_characters", num_characters, minimum=1)
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text.lower())
    chosen = sorted(counts, key=lambda character: (-counts[character], character))
    return CharacterVocabulary("".join(chosen[:num_characters]))


def _code_points(texts: Sequence[str]) -> np.ndarray:
    """Returns the code points of texts, one text after the other: (n,) uint32."""
    # A lone surrogate is no character, but must not fail.
    return np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")


@dataclasses.dataclass(frozen=True)
class HashedWords:
    """Words hashed into buckets, without a vocabulary; several words may share a bucket.

    Attributes:
        num_buckets: The number of buckets, >= 1; their ids follow `PADDING` 0.
    """

    num_buckets: int

    def __post_init__(self):
        check_count("num_buckets", self.num_buckets, minimum=1)

    @property
    def size(self) -> int:
        """The number of ids: the rows of an embedding."""
        return self.num_buckets + 1

    def encode(self, texts: Sequence[str] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of the distinct words and pairs of neighbouring words of texts.

        Words are those of `find_words` after `lower_cased`. They precede pairs; both are in the
        order of their first occurrence. An id is 1 plus the CRC-32 of the UTF-8 text modulo the
        number of buckets; the text of a pair has one space between its words.

        Returns:
            Ids, (n, longest) int32 in [0, size), padded at the end by `PADDING`, at least one wide;
            and the number of ids of each text, (n,) int32.
        """
        # All ratings of a film have the same text, its title.
        rows, distinct = pd.factorize(np.asarray(texts, object))
        bags = [self._ids(text) for text in distinct]
        counts = np.fromiter(map(len, bags), np.int32, len(bags))
        ids = np.full((len(bags), counts.max(initial=1)), PADDING, np.int32)
        ids[np.arange(ids.shape[1]) < counts[:, np.newaxis]] = [i for bag in bags for i in bag]
        return ids[rows], counts[rows]

    def _ids(self, text: str) -> list[int]:
        words = find_words(lower_cased(text))
        pairs = map(" ".join, zip(words, words[1:]))
        # No word has a surrogate, so each can be encoded.
        bag = dict.fromkeys([*words, *pairs])
        return [1 + zlib.crc32(text.encode()) % self.num_buckets for text in bag]

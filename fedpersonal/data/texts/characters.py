"""Texts as sequences of numbered characters."""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Sequence

import numpy as np

from fedpersonal.data.checks import check_count, check_distinct

PADDING = 0
UNKNOWN = 1
NUM_SPECIAL = 2


@dataclasses.dataclass(frozen=True)
class CharacterVocabulary:
    """The known characters; their ids follow `PADDING` 0 and `UNKNOWN` 1.

    Attributes:
        characters: Distinct lower-case characters, the most frequent first.
    """

    characters: str

    def __post_init__(self):
        check_distinct("characters", self.characters)

    @property
    def size(self) -> int:
        """How many ids there are: the rows of an embedding."""
        return len(self.characters) + NUM_SPECIAL

    def encode(self, texts: Sequence[str] | np.ndarray, *, length: int) -> np.ndarray:
        """The ids of the first `length` >= 1 characters of texts, in lower case.

        Returns:
            (len(texts), length) int32 in [0, size), padded at the end by `PADDING`. An empty text
            is one unknown character: a recurrent layer that skips padding needs something to read.
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
    """Makes a vocabulary of the most frequent characters of the training texts.

    Args:
        texts: (n,) str, which are counted in lower case.
        num_characters: How many to take at most, >= 1; of equally frequent ones those of the
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
    # A lone surrogate is no character, but no reason to fail either.
    return np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")

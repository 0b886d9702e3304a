"""A text's sentences, as they are written, and as lists of lower-cased words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from syntok import segmenter
from syntok.tokenizer import Tokenizer

# Both are part of a cached corpus's key: a change makes files be read again.
SENTENCE_BREAK = r"(?<=[.!?…])\s+|\s*[\r\n\u2028\u2029]\s*"
WORD = r"\w+(?:'\w+)*|[^\w\s]"

# What is not the speaker's own words, but an answered comment's: Reddit's and mails' mark.
QUOTATION_MARK = ">"

_TOKENIZER = Tokenizer(emit_hyphen_or_underscore_sep=True, replace_not_contraction=False)
_SENTENCE_BREAK = re.compile(SENTENCE_BREAK)
_WORD = re.compile(WORD)
# A line that has one of these before its last word may have more than one sentence.
_POSSIBLE_END = re.compile(r"[^\w\s,'’-]")


def split_sentences(text: str) -> list[str]:
    """Cuts a text into its sentences, none of them empty, and changes nothing in them.

    A sentence ends at a line break, and where `syntok` sees an end: it knows abbreviations such as
    "Mr.", initials, numbers, and "..." within a sentence. Lines that start with ">" quote someone
    else, and are left out.
    """
    sentences = []
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith(QUOTATION_MARK):
            sentences += _split_line(line)
    return sentences


def _split_line(line: str) -> list[str]:
    last_word = next((i for i in reversed(range(len(line))) if line[i].isalnum()), 0)
    if not _POSSIBLE_END.search(line, 0, last_word):  # Many are so short; tokens take time.
        return [line]
    # Tokens may differ from what is written in their values, but their places are right.
    starts = [tokens[0].offset for tokens in segmenter.segment(_TOKENIZER.tokenize(line))]
    bounds = [0, *starts[1:], len(line)]
    parts = (line[first:last].strip() for first, last in zip(bounds, bounds[1:]))
    return [part for part in parts if part]


def count_words(texts: Sequence[str] | np.ndarray) -> np.ndarray:
    """Counts the words and marks, in the sense of `split_words`, of (n,) texts: (n,) int64."""
    return np.fromiter((len(_WORD.findall(text)) for text in texts), np.int64, len(texts))


def split_words(text: str) -> list[list[str]]:
    """Cuts a text into sentences that have words, and these into lower-cased words.

    A sentence ends at a line break, and at `.`, `!`, `?` or `…` with white space after it. A word
    is a run of letters, digits and underscores, with apostrophes inside; any other mark is a word
    of its own.
    """
    # One spelling of an accented letter, and of the apostrophe, for all keyboards.
    text = unicodedata.normalize("NFC", text).lower().replace("\u2019", "'")
    sentences = (_WORD.findall(sentence) for sentence in _SENTENCE_BREAK.split(text))
    return [words for words in sentences if words]

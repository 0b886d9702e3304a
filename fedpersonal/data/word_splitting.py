"""A text's sentences, and a sentence's words."""

from __future__ import annotations

import re
import unicodedata

# Both are part of a cached corpus's key: a change makes files be read again.
SENTENCE_BREAK = r"(?<=[.!?…])\s+|\s*[\r\n\u2028\u2029]\s*"
WORD = r"\w+(?:'\w+)*|[^\w\s]"

_SENTENCE_BREAK = re.compile(SENTENCE_BREAK)
_WORD = re.compile(WORD)


def split_words(text: str) -> list[list[str]]:
    """Cuts a text into sentences and these into lower-cased words.

    A sentence ends at a line break, and at `.`, `!`, `?` or `…` with white space after it. A
    word is a run of letters, digits and underscores, with apostrophes inside; any other mark is
    a word of its own.

    Args:
        text: The text, as it was written.

    Returns:
        The words of each sentence that has any, in order.
    """
    # One spelling of an accented letter, and of the apostrophe, for all keyboards.
    text = unicodedata.normalize("NFC", text).lower().replace("\u2019", "'")
    sentences = (_WORD.findall(sentence) for sentence in _SENTENCE_BREAK.split(text))
    return [words for words in sentences if words]

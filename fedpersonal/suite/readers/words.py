"""Words and punctuation marks of texts in any script."""

from __future__ import annotations

import re
import unicodedata

import regex

# A letter, a digit or an underscore, then also vowel signs, tone marks, points and joiners, and the
# punctuation that Unicode's Annex 29 counts as letters, such as the Hebrew geresh. Selectors of
# emoji are no signs of a letter.
_LETTERS = (
    r"[\p{L}\p{N}_]"
    r"[\p{L}\p{N}_\u200c\u200d[\p{M}--[\ufe0e\ufe0f\u20e3]][\p{Word_Break=ALetter}&&\p{P}]]*"
)
# Gershayim stand within a word, as apostrophes do. `regex` takes four separators for no space.
TOKEN = rf"(?V1){_LETTERS}(?:['\u05f4]{_LETTERS})*|[^\s\x1c-\x1f]"
_TOKEN, _WORD = regex.compile(TOKEN), regex.compile(rf"(?V1){_LETTERS}")
# Equivalent patterns for ASCII text, in half the time.
_ASCII_TOKEN, _ASCII_WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]"), re.compile(r"\w+")


def lower_cased(text: str) -> str:
    """Returns a text in lower case, with one spelling of each accented letter (NFC).

    The Turkish capital dotted I becomes a plain i, not an i with a second dot as in Unicode's
    default, which would make two words of İyi and iyi.
    """
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", text).lower().replace("i\u0307", "i")


def find_tokens(text: str) -> list[str]:
    """Returns a text's words, which may contain apostrophes, and its other marks, in order.

    A word is a run of letters, digits and underscores, with the signs that Unicode combines with
    them. In a script without spaces, such as Thai or Chinese, each run is a word.
    """
    return (_ASCII_TOKEN if text.isascii() else _TOKEN).findall(text)


def find_words(text: str) -> list[str]:
    """Returns a text's words in order, without other marks; apostrophes separate words."""
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text)

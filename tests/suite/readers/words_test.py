"""Words of texts in scripts whose letters carry marks, and in scripts without spaces."""

from __future__ import annotations

import re
import unicodedata
import zlib

import numpy as np
import pytest

from fedpersonal.suite.readers.encoders import HashedWords
from fedpersonal.suite.readers.sentences import count_words, split_sentences, split_words
from fedpersonal.suite.readers.words import find_tokens, find_words, lower_cased

# By script: a text, its words, divided by spaces.
SCRIPTS = {
    "Hindi": ("मेरी भाषा हिन्दी है", "मेरी भाषा हिन्दी है"),
    "Tamil": ("தமிழ் மொழி", "தமிழ் மொழி"),
    "Bengali": ("আমার ভাষা বাংলা", "আমার ভাষা বাংলা"),
    "Telugu": ("తెలుగు భాష", "తెలుగు భాష"),
    "Malayalam, a chillu with a joiner": ("അവന്\u200d വന്നു", "അവന്\u200d വന്നു"),
    "Tibetan": ("བོད་སྐད", "བོད ་ སྐད"),
    "Burmese": ("မြန်မာ စာ", "မြန်မာ စာ"),
    "Khmer": ("ភាសាខ្មែរ", "ភាសាខ្មែរ"),
    "Arabic": ("كتاب جديد", "كتاب جديد"),
    "Arabic with points": ("كِتَابٌ جَدِيدٌ، نعم", "كِتَابٌ جَدِيدٌ ، نعم"),
    "Persian, a non-joiner": ("می\u200cخواهم بروم", "می\u200cخواهم بروم"),
    "Hebrew": ("שלום לך", "שלום לך"),
    "Hebrew with points": ("שָׁלוֹם לְךָ", "שָׁלוֹם לְךָ"),
    "Hebrew, geresh and gershayim": ("צה״ל ג׳ירפה", "צה״ל ג׳ירפה"),
    "Thai": ("ไม่ดี นะ", "ไม่ดี นะ"),
    "Turkish": ("İzmir ışık IŞIK", "izmir ışık işik"),
    "French": ("L'été, déjà", "l'été , déjà"),
    "Vietnamese": ("Tiếng Việt", "tiếng việt"),
    "Greek": ("Ἀθῆναι Σοφός", "ἀθῆναι σοφός"),
    "Russian, a stress": ("за\u0301мок", "за\u0301мок"),
    "Armenian": ("ինչո՞ւ", "ինչո՞ւ"),
    "Chinese": ("我喜欢茶。好", "我喜欢茶 。 好"),
    "Japanese": ("がんばって、東京タワー", "がんばって 、 東京タワー"),
    "Korean": ("한국어 좋아요!", "한국어 좋아요 !"),
    "emoji": ("ok 👍🏽❤\ufe0f 1\ufe0f\u20e3", "ok 👍 🏽 ❤ \ufe0f 1 \ufe0f \u20e3"),
    "English": ("Don't SHOUT: it's 2.5 m²", "don't shout : it's 2 . 5 m²"),
}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_words_keep_their_marks_in_either_spelling(script, form):
    text, words = SCRIPTS[script]
    written = unicodedata.normalize(form, text)
    expected = [unicodedata.normalize("NFC", word) for word in words.split(" ")]
    assert split_words(written) == [expected]
    letters = [w for word in expected if word[0].isalnum() for w in re.split("['״]", word)]
    assert find_words(lower_cased(written)) == letters
    assert count_words([written]) == len(expected)
    ids, _ = HashedWords(10**6).encode([written])
    buckets = [1 + zlib.crc32(word.encode()) % 10**6 for word in dict.fromkeys(letters)]
    assert ids[0, : len(buckets)].tolist() == buckets
    assert split_sentences(written) == [written]


def test_turkish_capitals_at_the_start_of_a_sentence_are_the_same_word():
    assert split_words("İyi. iyi. i\u0307yi") == [["iyi", "."], ["iyi", "."], ["iyi"]]


def test_a_mark_without_a_letter_is_no_word():
    assert find_tokens("\u0301 a \u0301") == ["\u0301", "a", "\u0301"]
    assert find_words("\u0301é \u200d") == ["é"]


def test_ascii_text_has_the_words_of_the_general_pattern():
    rng = np.random.default_rng(0)
    for codes in rng.integers(1, 128, (500, 40)):
        text = "".join(map(chr, codes)).lower()
        other = find_tokens(text + " é")
        assert [*find_tokens(text), "é"] == other
        assert [*find_words(text), "é"] == find_words(text + " é")

"""What others wrote cannot take hold of a message, or of the terminal that shows it."""

from __future__ import annotations

import pytest

from fedpersonal.errors import join_words, noun_with_count, one_line, printable, quoted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain \u00e9 \u4e2d", "plain \u00e9 \u4e2d"),
        ("\x1b[2Jred", "\\x1b[2Jred"),
        ("a\nb\r\t\0", "a\\nb\\r\\t\\x00"),
        ("\u202eabc", "\\u202eabc"),  # It would turn the line around.
        ("\udcff", "\\udcff"),
    ],
)
def test_control_characters_are_escaped(text, said):
    assert printable(text) == said
    assert quoted(text) == f"'{said}'"
    assert join_words([text]) == said


def test_what_is_long_is_cut():
    assert quoted("x" * 60) == f"'{'x' * 60}'"
    assert quoted("x" * 10**7) == f"'{'x' * 60}'..."
    assert join_words(["a", "x" * 61, "b"]) == f"a, {'x' * 60}..., b"
    assert join_words([str(i) for i in range(20)]).endswith(", 18, 19")
    assert join_words([str(i) for i in range(2021)]).endswith(", 18, 19 and 2,001 more")


def test_what_others_say_is_one_line():
    assert one_line(ValueError(" a\n b\x1b")) == "a b\\x1b"
    assert one_line(KeyError()) == "KeyError"
    assert one_line("x" * 10**7) == "x" * 200 + "..."


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "user", "1 user"),
        (0, "client", "0 clients"),
        (1200, "seen user", "1,200 seen users"),
        (2, "city", "2 cities"),
        (2, "day", "2 days"),
        (2, "branch", "2 branches"),
        (2, "box", "2 boxes"),
    ],
)
def test_nouns_are_counted(count, noun, said):
    assert noun_with_count(count, noun) == said

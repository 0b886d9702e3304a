"""Sentences and words, cut by hand."""

from __future__ import annotations

import pytest

from fedpersonal.data.word_splitting import split_words


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hello, World!", ["hello , world !"]),
        ("One. Two?  Three!\nFour\r\n\r\nfive", ["one .", "two ?", "three !", "four", "five"]),
        ("Version 2.5 of foo.txt", ["version 2 . 5 of foo . txt"]),
        ("don't 'quote' Jane’s rock'n'roll", ["don't ' quote ' jane's rock'n'roll"]),
        ("snake_case a-b $5", ["snake_case a - b $ 5"]),
        ("wait... what", ["wait . . .", "what"]),
        ("Cafe\u0301 ÉCLAIR 東京", ["café éclair 東京"]),
        (" \n\t ", []),
        ("", []),
    ],
)
def test_sentences_and_words(text, sentences):
    assert [" ".join(words) for words in split_words(text)] == sentences

"""Sentences and words, cut by hand."""

from __future__ import annotations

import pytest

from fedpersonal.data.sentences import count_words, split_sentences, split_words


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


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        (" \n ", []),
        ("No end", ["No end"]),
        ("Well... not now. Right?", ["Well... not now.", "Right?"]),
        ("Hey, Dr. Farber. Hi!", ["Hey, Dr. Farber.", "Hi!"]),
        ("It costs 3.50 now. Really", ["It costs 3.50 now.", "Really"]),
        ("No title\nA line  with  spaces", ["No title", "A line  with  spaces"]),
        ("> Who?\n  > You.\nI can't see it.", ["I can't see it."]),
        ("It works. :)", ["It works. :)"]),
    ],
)
def test_sentences_as_they_are_written(text, sentences):
    assert split_sentences(text) == sentences


def test_words_and_marks_are_counted():
    assert count_words(["I don't know...", "", "No!"]).tolist() == [6, 0, 2]

"""A corpus out of a table of texts: a row what a user wrote at a time."""

from __future__ import annotations

import array
import collections
import itertools
import os

import numpy as np
import pandas as pd

from fedpersonal.data.checks import check_count
from fedpersonal.data.client_dataset import ClientDataset, group_rows
from fedpersonal.data.names import number_names
from fedpersonal.data.tables.reading import named_columns, read_table, time_columns
from fedpersonal.data.texts import splitting
from fedpersonal.data.texts.corpus import KEPT_SENTENCES, TextCorpus
from fedpersonal.data.texts.corpus_cache import read_cached
from fedpersonal.errors import UserError, check_choice


def read_text(
    path: str | os.PathLike,
    *,
    user_column: str = "user",
    text_column: str = "text",
    time_column: str | None = "time",
    min_sentences: int = 2,
    max_sentences: int = 1024,
    kept_sentences: str = "earliest",
    cache_dir: str | os.PathLike | None = None,
) -> TextCorpus:
    """Reads the texts of a table, as of `read_table`, which counts bad rows.

    `splitting.split_words` says what sentences and words are. What is left out is counted in the
    corpus's report. Clients are ordered as of `number_names`, the lexicon is alphabetical.

    Args:
        path: The table.
        user_column: The column of the users' names.
        text_column: The column of the texts.
        time_column: The column of the times that order a user's texts, as of `time_columns`. The
            order of the rows decides among equal ones.
        min_sentences: Users with fewer sentences are left out, >= 1. A client with a single one
            cannot be split into a support and a query set.
        max_sentences: How many of a user's sentences are kept at most, >= `min_sentences`.
        kept_sentences: Which of them, one of `KEPT_SENTENCES`: the earliest, or the first ones in
            the table. They are put in time order either way.
        cache_dir: Where to keep the corpus, to be read from there as long as the file's content and
            the options are the same; None to keep nothing.

    Raises:
        UserError: As of `read_table`, or if no user has enough sentences, or `cache_dir` cannot be
            written.
    """
    check_count("min_sentences", min_sentences, minimum=1)
    check_count("max_sentences", max_sentences, minimum=min_sentences)
    check_choice("read_text", "kept_sentences", kept_sentences, KEPT_SENTENCES)
    file = os.fspath(path)
    columns = (user_column, text_column, time_column)
    limits = (int(min_sentences), int(max_sentences), kept_sentences)
    if cache_dir is None:
        return _read(file, columns, limits)
    settings = {
        "columns": columns,
        "limits": limits,
        "name": os.path.basename(file),
        "patterns": [splitting.SENTENCE_BREAK, splitting.WORD],
    }
    return read_cached(cache_dir, file, settings, lambda: _read(file, columns, limits))


def _read(
    path: str, columns: tuple[str, str, str | None], limits: tuple[int, int, str]
) -> TextCorpus:
    user_column, text_column, time_column = columns
    wanted = named_columns(user_column=user_column, text_column=text_column)
    wanted += time_columns(time_column)
    table = read_table(path, wanted, bad_rows="count")
    texts, report = table.columns[text_column], dict(table.report)
    owners, client_ids = number_names("user", table.columns[user_column])
    rows = np.lexsort((table.order(time_column), owners))
    row_counts, word_counts, words, lexicon = _split(texts, rows)
    counts = np.bincount(owners[rows], row_counts, minlength=client_ids.size).astype(np.int64)
    sentence_offsets = np.append(0, np.cumsum(word_counts, dtype=np.int64))
    offsets = np.append(0, np.cumsum(counts))
    sentences = ClientDataset(client_ids, offsets, features={}, labels=np.arange(offsets[-1]))

    min_sentences, max_sentences, kept_sentences = limits
    enough = counts >= min_sentences
    if not enough.any():
        raise UserError(
            f"{path}: no user has min_sentences={min_sentences} sentences; the most that one has"
            f" is {counts.max(initial=0)}"
        )
    places = sentences.example_positions
    if kept_sentences == "first_stored":
        stored = np.lexsort((np.repeat(rows, row_counts), sentences.example_clients))
        places[stored] = places.copy()
    kept = sentences.filter_examples(places < max_sentences).subset(np.flatnonzero(enough))
    report[f"users with fewer than {min_sentences} sentences"] = int((~enough).sum())
    report["sentences of these users"] = int(counts[~enough].sum())
    later = int(counts[enough].sum()) - kept.num_examples
    report[f"sentences after a user's first {max_sentences}"] = later

    rows, sentence_offsets = group_rows(sentence_offsets, kept.labels)
    used, words = np.unique(words[rows], return_inverse=True)
    order = np.argsort(lexicon[used], kind="stable")  # Without words that nobody kept has used.
    return TextCorpus(
        name=table.name,
        client_ids=kept.client_ids,
        client_offsets=kept.offsets,
        sentence_offsets=sentence_offsets,
        words=np.argsort(order)[words],
        lexicon=lexicon[used][order],
        report={what: count for what, count in report.items() if count},
    )


def _split(
    texts: pd.Categorical, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns sentences of each row, words of each sentence, the words and their lexicon."""
    # A new word is numbered when it is looked up.
    number = collections.defaultdict[str, int](itertools.count().__next__)
    words, word_counts = array.array("i"), array.array("q")
    row_counts = np.zeros(rows.size, np.int64)
    for place, row in enumerate(rows):
        sentences = splitting.split_words(texts[row])
        row_counts[place] = len(sentences)
        for sentence in sentences:
            words.extend(map(number.__getitem__, sentence))
            word_counts.append(len(sentence))
    return row_counts, np.array(word_counts), np.array(words), np.array(list(number), object)

"""A corpus out of a table of texts: a row what a user wrote at a time."""

from __future__ import annotations

import array
import collections
import os

import numpy as np
import pandas as pd

from fedpersonal.data.checks import check_count
from fedpersonal.data.client_dataset import group_rows
from fedpersonal.data.tables.files import Column
from fedpersonal.data.tables.reading import read_table, time_columns
from fedpersonal.data.texts import splitting
from fedpersonal.data.texts.corpus import TextCorpus
from fedpersonal.data.texts.corpus_cache import cache_path, load_corpus, save_corpus
from fedpersonal.errors import UserError


def read_text(
    path: str | os.PathLike,
    *,
    user_column: str = "user",
    text_column: str = "text",
    time_column: str | None = "time",
    min_sentences: int = 2,
    max_sentences: int = 1024,
    name: str | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> TextCorpus:
    """Reads the texts of a .csv, .tsv or .jsonl file (.json means the same), gzipped or not.

    `splitting.split_words` says what sentences and words are. Lines that cannot be read,
    rows without user, text or time, and users with too little are left out, and counted in the
    corpus's report.

    Args:
        path: The file; its extension tells the format, and `.gz` after it the compression.
        user_column: The column of the users' names.
        text_column: The column of the texts.
        time_column: The column of the times, numbers or dates as in ISO 8601, which order a
            user's texts; None for the order of the rows, which also decides among equal times.
            The default may be missing from the file, any other name may not.
        min_sentences: Users with fewer sentences are left out, >= 1. A client with a single one
            cannot be split into a support and a query set.
        max_sentences: A user's later sentences are left out, >= `min_sentences`.
        name: What to call the corpus; None for the file's name without its extensions.
        cache_dir: Where to keep the corpus, so that it is read from there the next time unless
            the file's content or an option differs; None to keep nothing.

    Returns:
        The corpus, its clients ordered by name, its lexicon alphabetically.

    Raises:
        UserError: If the file as a whole cannot be read, lacks a column, has no row to be used,
            or no user with `min_sentences` sentences; or if `cache_dir` cannot be written.
    """
    check_count("min_sentences", min_sentences, minimum=1)
    check_count("max_sentences", max_sentences, minimum=min_sentences)
    path = os.fspath(path)
    columns = (user_column, text_column, time_column)
    limits = (int(min_sentences), int(max_sentences))
    name = os.path.basename(path).split(".")[0] if name is None else name
    if cache_dir is None:
        return _read(path, columns, limits, name)
    settings = {
        "columns": columns,
        "limits": limits,
        "name": name,
        "extensions": os.path.basename(path).lower().split(".")[1:],
        "patterns": [splitting.SENTENCE_BREAK, splitting.WORD],
    }
    cached = cache_path(cache_dir, path, settings)
    corpus = load_corpus(cached)
    if corpus is None:
        corpus = _read(path, columns, limits, name)
        save_corpus(cached, corpus)
    return corpus


def _read(
    path: str, columns: tuple[str, str, str | None], limits: tuple[int, int], name: str
) -> TextCorpus:
    user_column, text_column, time_column = columns
    wanted = [Column(user_column), Column(text_column), *time_columns(time_column)]
    table = read_table(path, wanted, bad_rows="count")
    texts, report = table.columns[text_column], collections.Counter(table.report)
    user_ids, owners = np.unique(
        np.asarray(table.columns[user_column], object), return_inverse=True
    )
    rows = np.lexsort((table.order(time_column), owners))

    row_counts, word_counts, words, lexicon = _split(texts, rows)
    counts = np.bincount(owners[rows], row_counts, minlength=user_ids.size).astype(np.int64)
    corpus = TextCorpus(
        name=name,
        client_ids=user_ids,
        client_offsets=np.append(0, np.cumsum(counts)),
        sentence_offsets=np.append(0, np.cumsum(word_counts, dtype=np.int64)),
        words=words,
        lexicon=lexicon,
    )
    return _limited(corpus, limits, path, report)


def _split(
    texts: pd.Categorical, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns sentences of each row, words of each sentence, the words and their lexicon."""
    number = collections.defaultdict()
    number.default_factory = number.__len__  # A new word is numbered when it is looked up.
    words, word_counts = array.array("i"), array.array("q")
    row_counts = np.zeros(rows.size, np.int64)
    for place, row in enumerate(rows):
        sentences = splitting.split_words(texts[row])
        row_counts[place] = len(sentences)
        for sentence in sentences:
            words.extend(map(number.__getitem__, sentence))
            word_counts.append(len(sentence))
    lexicon = np.array(list(number), object)
    return row_counts, np.array(word_counts), np.array(words, np.int32), lexicon


def _limited(
    corpus: TextCorpus, limits: tuple[int, int], path: str, report: collections.Counter
) -> TextCorpus:
    """Leaves out users with too few sentences, later sentences, and words without use."""
    min_sentences, max_sentences = limits
    counts = corpus.sentence_counts
    enough = counts >= min_sentences
    if not enough.any():
        raise UserError(
            f"{path}: no user has min_sentences={min_sentences} sentences; the most that one has"
            f" is {counts.max(initial=0)}"
        )
    report[f"users with fewer than {min_sentences} sentences"] = int((~enough).sum())
    report["sentences of these users"] = int(counts[~enough].sum())
    kept = np.minimum(counts, max_sentences)
    places = np.arange(corpus.num_sentences) - np.repeat(corpus.client_offsets[:-1], counts)
    chosen = np.flatnonzero(np.repeat(enough, counts) & (places < max_sentences))
    report[f"sentences after a user's first {max_sentences}"] = int((counts - kept)[enough].sum())

    rows, sentence_offsets = group_rows(corpus.sentence_offsets, chosen)
    used, words = np.unique(corpus.words[rows], return_inverse=True)
    order = np.argsort(corpus.lexicon[used], kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return TextCorpus(
        name=corpus.name,
        client_ids=corpus.client_ids[enough],
        client_offsets=np.append(0, np.cumsum(kept[enough])),
        sentence_offsets=sentence_offsets,
        words=rank[words],
        lexicon=corpus.lexicon[used][order],
        report={what: count for what, count in report.items() if count},
    )

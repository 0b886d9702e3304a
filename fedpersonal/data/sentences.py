"""The sentences of many clients, as numbers of words: split, read from files, cached."""

from __future__ import annotations

import array
import collections
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from syntok import segmenter
from syntok.tokenizer import Tokenizer

from fedpersonal.data.clients import ClientDataset, group_rows, number_names
from fedpersonal.data.formats import TableFile
from fedpersonal.data.rows import open_bytes
from fedpersonal.data.sources import LoadedData, check_count
from fedpersonal.data.tables import named_columns, read_table, time_columns
from fedpersonal.data.words import TOKEN, find_tokens, lower_cased
from fedpersonal.errors import UserError, check_choice
from fedpersonal.files import read_arrays, write_arrays

# Which of a client's sentences are kept where they are too many: the earliest, or the first ones in
# the order in which they are stored.
KEPT_SENTENCES = ("earliest", "first_stored")


@dataclasses.dataclass(frozen=True, eq=False)
class TextCorpus(LoadedData):
    """Sentences of many clients, a client's contiguous and in time order.

    Attributes:
        name: What the corpus is, such as "stack_exchange".
        client_ids: (num_clients,) distinct names, str objects.
        client_offsets: (num_clients + 1,) int64; client `i` owns sentences
            `client_offsets[i]:client_offsets[i + 1]`.
        sentence_offsets: (num_sentences + 1,) int64; sentence `j` owns words
            `sentence_offsets[j]:sentence_offsets[j + 1]`.
        words: (num_words,) int32 indices into the lexicon.
        lexicon: (num_distinct,) distinct words, str objects; some may not occur.
        report: How many things of which kind were left out when the corpus was made.
    """

    name: str
    client_ids: np.ndarray
    client_offsets: np.ndarray
    sentence_offsets: np.ndarray
    words: np.ndarray
    lexicon: np.ndarray
    report: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        dtypes = {"client_ids": object, "client_offsets": np.int64, "sentence_offsets": np.int64}
        for field, dtype in {**dtypes, "words": np.int32, "lexicon": object}.items():
            object.__setattr__(self, field, np.asarray(getattr(self, field), dtype))
        offsets = self.sentence_offsets
        if offsets.ndim != 1 or not offsets.size or offsets[0] or (np.diff(offsets) < 0).any():
            raise UserError("sentence_offsets must start at 0 and never descend")
        if self.words.shape != (offsets[-1],):
            raise UserError(
                f"words must have shape ({offsets[-1]},), as the sentence_offsets end there,"
                f" got {self.words.shape}"
            )
        if self.words.size and not 0 <= self.words.min() <= self.words.max() < self.lexicon.size:
            raise UserError(f"words must be in [0, {self.lexicon.size}), the lexicon's size")
        self._by_client()

    def _by_client(self) -> ClientDataset:
        """The sentences' indices as examples, which checks the clients and can choose some."""
        return ClientDataset(
            self.client_ids, self.client_offsets, features={}, labels=np.arange(self.num_sentences)
        )

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return self.client_ids.size

    @property
    def num_sentences(self) -> int:
        """How many sentences all clients have together."""
        return self.sentence_offsets.size - 1

    @property
    def sizes(self) -> dict[str, int]:
        """How many sentences, users and words there are."""
        sizes = {"num_sentences": self.num_sentences, "num_users": self.num_clients}
        return {**sizes, "num_words": self.words.size}

    @property
    def word_clients(self) -> np.ndarray:
        """The index of the client that wrote each word, (num_words,) int64."""
        counts = np.diff(self.sentence_offsets[self.client_offsets])
        return np.repeat(np.arange(self.num_clients), counts)

    def subset(self, client_indices: Sequence[int] | np.ndarray) -> TextCorpus:
        """Returns the same sentences of some clients only, with the same lexicon and report.

        Indices are as of `ClientDataset.subset`.
        """
        chosen = self._by_client().subset(client_indices)
        rows, offsets = group_rows(self.sentence_offsets, chosen.labels)
        return dataclasses.replace(
            self,
            client_ids=chosen.client_ids,
            client_offsets=chosen.offsets,
            sentence_offsets=offsets,
            words=self.words[rows],
        )


# To be raised when the same text and settings give another corpus, or the arrays change.
_FORMAT_VERSION = 5
_TEXTS = ("client_ids", "lexicon")
_NUMBERS = ("client_offsets", "sentence_offsets", "words")


def read_cached(
    cache_dir: str | os.PathLike,
    source: str,
    settings: Mapping[str, object],
    read: Callable[[], TextCorpus],
) -> TextCorpus:
    """Takes a corpus out of a folder's file, or calls `read` and writes that file.

    The file is that of the content of `source`, whatever its name, and of the `settings` of its
    reading, of what JSON can write.
    """
    key = hashlib.sha256()
    with open_bytes(source) as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            key.update(block)
    key.update(json.dumps([_FORMAT_VERSION, dict(settings)], sort_keys=True).encode())
    path = pathlib.Path(cache_dir) / f"corpus_{key.hexdigest()[:32]}.npz"
    corpus = _load(path)
    if corpus is None:
        corpus = read()
        _save(path, corpus)
    return corpus


def _save(path: pathlib.Path, corpus: TextCorpus):
    texts = {field: getattr(corpus, field).tolist() for field in _TEXTS}
    about = json.dumps({"name": corpus.name, "report": dict(corpus.report), **texts})
    arrays = {field: getattr(corpus, field) for field in _NUMBERS}
    # Of its own in each process: two that read the same file may write at the same time.
    own = path.with_name(f"{path.stem}.{os.getpid()}.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(own, {"about": np.frombuffer(about.encode(), np.uint8), **arrays})
        os.replace(own, path)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written: {error.strerror or error}") from None


def _load(path: pathlib.Path) -> TextCorpus | None:
    """Returns what `_save` wrote, or None if the file is missing or damaged."""
    try:
        arrays = read_arrays(path)
        found: dict[str, Any] = {field: arrays[field] for field in _NUMBERS}
        return TextCorpus(**json.loads(arrays["about"].tobytes()), **found)
    except Exception:  # Of another version, they are other arrays.
        return None


# Part of a cached corpus's key, as `TOKEN` is: a change makes files be read again.
SENTENCE_BREAK = r"(?<=[.!?…])\s+|\s*[\r\n\u2028\u2029]\s*"

# What is not the speaker's own words, but an answered comment's: Reddit's and mails' mark.
QUOTATION_MARK = ">"

_TOKENIZER = Tokenizer(emit_hyphen_or_underscore_sep=True, replace_not_contraction=False)
_SENTENCE_BREAK = re.compile(SENTENCE_BREAK)
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
    return np.fromiter((len(find_tokens(text)) for text in texts), np.int64, len(texts))


def split_words(text: str) -> list[list[str]]:
    """Cuts a text into sentences that have words, and these into lower-cased words.

    A sentence ends at a line break, and at `.`, `!`, `?` or `…` with white space after it. Words
    are as of `find_tokens`; any other mark is a word of its own.
    """
    # One spelling of the apostrophe for all keyboards.
    text = lower_cased(text).replace("\u2019", "'")
    sentences = (find_tokens(sentence) for sentence in _SENTENCE_BREAK.split(text))
    return [words for words in sentences if words]


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

    `split_words` says what sentences and words are. What is left out is counted in the
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
    file = TableFile.of(path)
    columns = (user_column, text_column, time_column)
    limits = (int(min_sentences), int(max_sentences), kept_sentences)
    if cache_dir is None:
        return _read(file, columns, limits)
    settings = {
        "columns": columns,
        "limits": limits,
        "name": os.path.basename(file.path),
        "format": [file.separator, file.names, file.encoding, file.quoting],
        "patterns": [SENTENCE_BREAK, TOKEN],
    }
    return read_cached(cache_dir, file.path, settings, lambda: _read(file, columns, limits))


def _read(
    file: TableFile, columns: tuple[str, str, str | None], limits: tuple[int, int, str]
) -> TextCorpus:
    user_column, text_column, time_column = columns
    wanted = named_columns(user_column=user_column, text_column=text_column)
    wanted += time_columns(time_column)
    table = read_table(file, wanted, bad_rows="count")
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
            f"{file.path}: no user has min_sentences={min_sentences} sentences; the most that one"
            f" has is {counts.max(initial=0)}"
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
        sentences = split_words(texts[row])
        row_counts[place] = len(sentences)
        for sentence in sentences:
            words.extend(map(number.__getitem__, sentence))
            word_counts.append(len(sentence))
    return row_counts, np.array(word_counts), np.array(words), np.array(list(number), object)

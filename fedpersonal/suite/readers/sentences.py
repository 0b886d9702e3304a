"""Sentences of clients as indices of words: splitting, reading from files, caching."""

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
from fedpersonal.errors import UserError, check_choice
from fedpersonal.files import read_arrays, write_arrays
from fedpersonal.suite.readers.words import TOKEN, find_tokens, lower_cased

# The sentences that stay if a client has too many: the earliest, or the first ones in the order in
# which they are stored.
KEPT_SENTENCES = ("earliest", "first_stored")


@dataclasses.dataclass(frozen=True, eq=False)
class TextCorpus(LoadedData):
    """Sentences of clients; each client's sentences are contiguous and in time order.

    Attributes:
        name: The name of the corpus, such as "stack_exchange".
        client_ids: (num_clients,) distinct names, str objects.
        client_offsets: (num_clients + 1,) int64; client `i` owns sentences
            `client_offsets[i]:client_offsets[i + 1]`.
        sentence_offsets: (num_sentences + 1,) int64; sentence `j` owns words
            `sentence_offsets[j]:sentence_offsets[j + 1]`.
        words: (num_words,) int32 indices into the lexicon.
        lexicon: (num_distinct,) distinct words, str objects; not all need occur.
        report: Reason to the number of users or sentences that were left out.
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
                f"words must have shape ({offsets[-1]},), the end of the sentence_offsets,"
                f" got {self.words.shape}"
            )
        if self.words.size and not 0 <= self.words.min() <= self.words.max() < self.lexicon.size:
            raise UserError(f"words must be in [0, {self.lexicon.size}), the lexicon's size")
        self._by_client()

    def _by_client(self) -> ClientDataset:
        """Returns the sentences' indices as a `ClientDataset`, which checks and selects clients."""
        return ClientDataset(
            self.client_ids, self.client_offsets, features={}, labels=np.arange(self.num_sentences)
        )

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return self.client_ids.size

    @property
    def num_sentences(self) -> int:
        """The number of sentences of all clients."""
        return self.sentence_offsets.size - 1

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of sentences, users and words."""
        sizes = {"num_sentences": self.num_sentences, "num_users": self.num_clients}
        return {**sizes, "num_words": self.words.size}

    @property
    def word_clients(self) -> np.ndarray:
        """The index of the client that wrote each word, (num_words,) int64."""
        counts = np.diff(self.sentence_offsets[self.client_offsets])
        return np.repeat(np.arange(self.num_clients), counts)

    def subset(self, client_indices: Sequence[int] | np.ndarray) -> TextCorpus:
        """Returns the sentences of the given clients, with the same lexicon and report.

        `client_indices` are as of `ClientDataset.subset`.
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


# Increase it when the same text and settings give another corpus, or when the arrays change.
_FORMAT_VERSION = 5
_TEXTS = ("client_ids", "lexicon")
_NUMBERS = ("client_offsets", "sentence_offsets", "words")


def read_cached(
    cache_dir: str | os.PathLike,
    source: str,
    settings: Mapping[str, object],
    read: Callable[[], TextCorpus],
) -> TextCorpus:
    """Returns a cached corpus, or calls `read` and caches its result.

    The cache key depends on the content of the file `source`, not on its name, and on the
    `settings` of reading, which JSON must be able to write.
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
    # One for each process, because two that read the same file may write at the same time.
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(temporary, {"about": np.frombuffer(about.encode(), np.uint8), **arrays})
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written: {error.strerror or error}") from None


def _load(path: pathlib.Path) -> TextCorpus | None:
    """Returns the corpus that `_save` wrote, or None if the file is missing or damaged."""
    try:
        arrays = read_arrays(path)
        numbers: dict[str, Any] = {field: arrays[field] for field in _NUMBERS}
        return TextCorpus(**json.loads(arrays["about"].tobytes()), **numbers)
    except Exception:  # A file of another version has other arrays.
        return None


# Part of the cache key of a corpus, as `TOKEN` is: after a change, files are read again.
SENTENCE_BREAK = r"(?<=[.!?…])\s+|\s*[\r\n\u2028\u2029]\s*"

# The mark of a quotation in Reddit's comments and in mails.
QUOTATION_MARK = ">"

_TOKENIZER = Tokenizer(emit_hyphen_or_underscore_sep=True, replace_not_contraction=False)
_SENTENCE_BREAK = re.compile(SENTENCE_BREAK)
# A line with one of these characters before its last word may have several sentences.
_POSSIBLE_END = re.compile(r"[^\w\s,'’-]")


def split_sentences(text: str) -> list[str]:
    """Splits a text into its non-empty sentences, without other changes.

    A sentence ends at a line break and where `syntok` finds an end. `syntok` recognises
    abbreviations such as "Mr.", initials, numbers, and "..." within a sentence. Lines that start
    with ">" are quotations and left out.
    """
    sentences = []
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith(QUOTATION_MARK):
            sentences += _split_line(line)
    return sentences


def _split_line(line: str) -> list[str]:
    last_word = next((i for i in reversed(range(len(line))) if line[i].isalnum()), 0)
    if not _POSSIBLE_END.search(
        line, 0, last_word
    ):  # Most lines end here, before the slow tokenizer.
        return [line]
    # The values of tokens may differ from the text, but their offsets are right.
    starts = [tokens[0].offset for tokens in segmenter.segment(_TOKENIZER.tokenize(line))]
    bounds = [0, *starts[1:], len(line)]
    parts = (line[first:last].strip() for first, last in zip(bounds, bounds[1:]))
    return [part for part in parts if part]


def count_words(texts: Sequence[str] | np.ndarray) -> np.ndarray:
    """Counts the words and marks of (n,) texts, as `split_words` defines them: (n,) int64."""
    return np.fromiter((len(find_tokens(text)) for text in texts), np.int64, len(texts))


def split_words(text: str) -> list[list[str]]:
    """Splits a text into sentences with words, and these into lower-cased words.

    A sentence ends at a line break, and at `.`, `!`, `?` or `…` before white space. Words are those
    of `find_tokens`; every other mark is a separate word.
    """
    # One spelling of the apostrophe.
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
    """Reads the texts of a table by `read_table`, which counts bad rows.

    `split_words` defines sentences and words. The corpus's report counts what is left out. Clients
    are ordered by `number_names`, the lexicon alphabetically.

    Args:
        path: The table.
        user_column: The column of the users' names.
        text_column: The column of the texts.
        time_column: The column of the times that order a user's texts, as of `time_columns`. Rows
            with equal times keep their order.
        min_sentences: Users with fewer sentences are left out, >= 1. A client with one sentence
            cannot be split into a support set and a query set.
        max_sentences: The maximum number of a user's sentences, >= `min_sentences`.
        kept_sentences: The sentences that stay, one of `KEPT_SENTENCES`: the earliest, or the first
            ones in the table. Both are put in time order.
        cache_dir: The folder that caches the corpus for the file's content and the options; None
            for no cache.

    Raises:
        UserError: As of `read_table`, or if no user has enough sentences, or `cache_dir` cannot be
            written.
    """
    check_count("min_sentences", min_sentences, minimum=1)
    check_count("max_sentences", max_sentences, minimum=min_sentences)
    check_choice("read_text", "kept_sentences", kept_sentences, KEPT_SENTENCES)
    file = TableFile.from_path(path)
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
    table_columns = named_columns(user_column=user_column, text_column=text_column)
    table_columns += time_columns(time_column)
    table = read_table(file, table_columns, bad_rows="count")
    texts, report = table.columns[text_column], dict(table.report)
    row_users, client_ids = number_names("user", table.columns[user_column])
    rows = np.lexsort((table.order(time_column), row_users))
    row_counts, word_counts, words, lexicon = _split(texts, rows)
    counts = np.bincount(row_users[rows], row_counts, minlength=client_ids.size).astype(np.int64)
    sentence_offsets = np.append(0, np.cumsum(word_counts, dtype=np.int64))
    offsets = np.append(0, np.cumsum(counts))
    sentences = ClientDataset(client_ids, offsets, features={}, labels=np.arange(offsets[-1]))

    min_sentences, max_sentences, kept_sentences = limits
    has_enough = counts >= min_sentences
    if not has_enough.any():
        raise UserError(
            f"{file.path}: no user has min_sentences={min_sentences} sentences; the most that one"
            f" has is {counts.max(initial=0)}"
        )
    places = sentences.example_positions
    if kept_sentences == "first_stored":
        stored = np.lexsort((np.repeat(rows, row_counts), sentences.example_clients))
        places[stored] = places.copy()
    kept = sentences.filter_examples(places < max_sentences).subset(np.flatnonzero(has_enough))
    report[f"users with fewer than {min_sentences} sentences"] = int((~has_enough).sum())
    report["sentences of these users"] = int(counts[~has_enough].sum())
    later = int(counts[has_enough].sum()) - kept.num_examples
    report[f"sentences after a user's first {max_sentences}"] = later

    rows, sentence_offsets = group_rows(sentence_offsets, kept.labels)
    used, words = np.unique(words[rows], return_inverse=True)
    order = np.argsort(
        lexicon[used], kind="stable"
    )  # Without words that no remaining user has used.
    return TextCorpus(
        name=table.name,
        client_ids=kept.client_ids,
        client_offsets=kept.offsets,
        sentence_offsets=sentence_offsets,
        words=np.argsort(order)[words],
        lexicon=lexicon[used][order],
        report={reason: count for reason, count in report.items() if count},
    )


def _split(
    texts: pd.Categorical, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the number of sentences of each row, of words of each sentence, words and lexicon."""
    # The lookup of a new word numbers it.
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

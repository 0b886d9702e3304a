"""The federated Stack Overflow data set of TensorFlow Federated, read a few clients at a time.

Sentences are lower-cased words, separated by spaces. The held-out clients, here the validation
clients, have no sentences in the other two parts. The test clients are training clients, and new
ones, at a later time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.rows import open_bytes
from fedpersonal.data.sources import (
    LoadedData,
    check_counts,
    check_reachable,
    fingerprint,
    shorten_errors,
)
from fedpersonal.errors import UserError, check_choice
from fedpersonal.suite.readers.sentences import KEPT_SENTENCES, TextCorpus
from fedpersonal.suite.readers.vocabulary import Vocabulary, next_word_examples

if TYPE_CHECKING:
    from fedpersonal.tff.stock import ClientData

DATABASE = "stackoverflow.sqlite"
_FAILURE = "Stack Overflow cannot be loaded"
_BATCH_SIZE = 4096  # Sentences that are read at once, which is faster.
_URL = f"https://storage.googleapis.com/tff-datasets-public/{DATABASE}.lzma"


class StackOverflowClients:
    """Clients of one part of the data, read when they are used."""

    def __init__(
        self,
        client_data: ClientData,
        vocabulary: Vocabulary,
        *,
        name: str,
        sequence_length: int = 20,
        max_sentences: int = 1024,
        kept_sentences: str = "earliest",
    ):
        """Lists clients whose examples have "tokens" and "creation_date", without reading them.

        `name` is the name of the part; the options are those of `load_stack_overflow`.
        """
        self.name = name
        self.vocabulary = vocabulary
        self._client_data = client_data
        self.sequence_length = sequence_length
        self._max_sentences = max_sentences
        check_choice("StackOverflowClients", "kept_sentences", kept_sentences, KEPT_SENTENCES)
        self._kept_sentences = kept_sentences
        # It has no examples, and only checks indices and selects clients.
        ids = np.array(client_data.client_ids, object)
        self._clients = ClientDataset(ids, np.zeros(ids.size + 1, np.int64), {}, np.zeros(0))

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return self._clients.num_clients

    @property
    def client_ids(self) -> np.ndarray:
        """The clients' names, (num_clients,) str objects."""
        return self._clients.client_ids

    def subset(self, client_indices: Sequence[int] | np.ndarray) -> ClientDataset:
        """Reads the given clients' examples, as of `next_word_examples`."""
        corpus = self.corpus(client_indices)
        return next_word_examples(corpus, self.vocabulary, sequence_length=self.sequence_length)

    def corpus(self, client_indices: Sequence[int] | np.ndarray) -> TextCorpus:
        """Reads the given clients' sentences by date; indices as of `ClientDataset.subset`."""
        client_ids = self._clients.subset(client_indices).client_ids
        sentences, counts, left_out = [], [], 0
        for client_id in client_ids:
            examples = self._client_data.serializable_dataset_fn(client_id).batch(_BATCH_SIZE)
            batches = list(examples.as_numpy_iterator())
            dates = [date for batch in batches for date in batch["creation_date"]]
            texts = [text for batch in batches for text in batch["tokens"]]
            # "2008-08-10 08:28:52.1 UTC": the order of the texts is that of the dates.
            stored = len(dates) if self._kept_sentences == "earliest" else self._max_sentences
            by_date = sorted(range(min(stored, len(dates))), key=dates.__getitem__)
            kept = by_date[: self._max_sentences]
            left_out += len(dates) - len(kept)
            counts.append(len(kept))
            sentences += [texts[i].decode("utf-8", "replace").split() for i in kept]
        words = [word for sentence in sentences for word in sentence]
        lexicon, numbers = np.unique(np.array(words, object), return_inverse=True)
        reason = f"sentences after a user's first {self._max_sentences}"
        return TextCorpus(
            name=self.name,
            client_ids=client_ids,
            client_offsets=np.cumsum([0, *counts]),
            sentence_offsets=np.cumsum([0, *map(len, sentences)]),
            words=numbers,
            lexicon=lexicon,
            report={reason: left_out} if left_out else {},
        )


@dataclasses.dataclass(frozen=True, eq=False)
class StackOverflow(LoadedData):
    """The three parts of the data.

    Attributes:
        train: The training clients.
        validation: The held-out clients.
        test: The test clients.
        vocabulary: The words' ids, the same in all parts.
        name: The name of the data.
        report: Empty; each corpus of clients has a report.
    """

    train: StackOverflowClients
    validation: StackOverflowClients
    test: StackOverflowClients
    vocabulary: Vocabulary
    name: str = "stack_overflow"
    report: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of words in the vocabulary and of training clients."""
        num_words = self.vocabulary.words.size
        return {"num_known_words": num_words, "num_users": self.train.num_clients}

    def fingerprint(self) -> str:
        """Returns a short hash of the clients' names and the vocabulary: 16 hexadecimal digits."""
        parts = {part.name: part.client_ids for part in (self.train, self.validation, self.test)}
        return fingerprint({**parts, "words": self.vocabulary.words})


def find_database(cache_dir: str | os.PathLike | None) -> tuple[pathlib.Path, str]:
    """Returns the path of the data, existing or not, and advice; TensorFlow is not imported.

    `cache_dir` is that of `load_stack_overflow`. The errors are those that need no full reading.
    """
    folder = pathlib.Path.home() / ".tff" if cache_dir is None else pathlib.Path(cache_dir)
    database = folder / DATABASE
    advice = f"unpack {_URL} to {database}, or give the folder where it is as cache_dir"
    if not database.exists():
        check_reachable(_URL, advice)
        return database, advice
    with open_bytes(str(database)), shorten_errors(_FAILURE, advice):
        with contextlib.closing(
            sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)
        ) as file:
            file.execute("SELECT COUNT(*) FROM sqlite_master")
    return database, advice


def load_stack_overflow(
    *,
    vocab_size: int,
    num_oov_buckets: int,
    sequence_length: int = 20,
    max_sentences: int = 1024,
    kept_sentences: str = "earliest",
    cache_dir: str | os.PathLike | None = None,
) -> StackOverflow:
    """Opens the federated Stack Overflow data, and downloads it first if it is missing.

    The download has many gigabytes; the file appears only when it is complete.

    Args:
        vocab_size: The number of words of the vocabulary, those of the most training users, >= 1.
        num_oov_buckets: The number of buckets that the other words share, >= 1.
        sequence_length: As of `next_word_examples`.
        max_sentences: The maximum number of a client's sentences, >= 1.
        kept_sentences: The sentences that stay, one of `KEPT_SENTENCES`; they are sorted by date.
        cache_dir: The folder of the data; None for `.tff` in the home folder.

    Raises:
        UserError: If the data cannot be downloaded or opened.
    """
    options = {"sequence_length": sequence_length, "max_sentences": max_sentences}
    check_counts(1, vocab_size=vocab_size, num_oov_buckets=num_oov_buckets, **options)
    database, advice = find_database(cache_dir)
    folder = database.parent
    from fedpersonal.tff.stock import stackoverflow

    with shorten_errors(_FAILURE, advice):
        if not database.exists():
            folder.mkdir(parents=True, exist_ok=True)
            # In another folder first, because TFF would take a partial download for the whole.
            with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder) as temporary:
                stackoverflow.load_data(cache_dir=temporary)
                os.replace(pathlib.Path(temporary) / DATABASE, database)
        counts = stackoverflow.load_word_counts(cache_dir=str(folder), vocab_size=vocab_size)
        parts = stackoverflow.load_data(cache_dir=str(folder))
    if len(counts) < vocab_size:
        raise UserError(f"vocab_size={vocab_size} is more than the {len(counts)} words there are")
    vocabulary = Vocabulary(np.array(list(counts), object), num_oov_buckets)
    train, validation, test = (
        StackOverflowClients(
            part,
            vocabulary,
            name=f"stack_overflow_{name}",
            kept_sentences=kept_sentences,
            **options,
        )
        for part, name in zip(parts, ("train", "validation", "test"))
    )
    return StackOverflow(train, validation, test, vocabulary)

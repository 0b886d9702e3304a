"""Vocabulary of words, with padding, sentence ends and buckets; next words as examples."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import check_count, check_distinct
from fedpersonal.errors import UserError, check_choice
from fedpersonal.suite.readers.sentences import TextCorpus

PAD = 0
BOS = 1
EOS = 2
NUM_SPECIAL = 3
# The choice of the vocabulary's words, as of `build_vocabulary`.
KNOWN_WORDS = ("most_frequent", "most_users")


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words with ids, and buckets into which all other words are hashed.

    With V words and B buckets, the ids are `PAD` 0, `BOS` 1 and `EOS` 2 (before and after a
    sentence), the words 3 to V + 2, and the out-of-vocabulary buckets V + 3 to V + 2 + B.

    Attributes:
        words: (V,) distinct words, str objects, the most frequent first.
        num_oov_buckets: B >= 1.
    """

    words: np.ndarray
    num_oov_buckets: int

    def __post_init__(self):
        object.__setattr__(self, "words", np.asarray(self.words, object))
        check_distinct("the words of a vocabulary", self.words.tolist())
        check_count("num_oov_buckets", self.num_oov_buckets, minimum=1)

    @property
    def num_known(self) -> int:
        """The number of ids that are no buckets, V + 3: the rows of a global embedding."""
        return self.words.size + NUM_SPECIAL

    @property
    def size(self) -> int:
        """The number of ids, V + 3 + B: the width of a softmax over them."""
        return self.num_known + self.num_oov_buckets

    def ids(self, lexicon: Sequence[str] | np.ndarray) -> np.ndarray:
        """Returns the ids of (n,) words: (n,) int32, each in [3, size).

        The bucket of an out-of-vocabulary word is the CRC-32 of its UTF-8 bytes modulo the number
        of buckets, the same in every process.
        """
        word_ids = {word: i for i, word in enumerate(self.words, start=NUM_SPECIAL)}
        first, buckets = self.num_known, self.num_oov_buckets
        ids = [
            word_ids[word] if word in word_ids else first + zlib.crc32(word.encode()) % buckets
            for word in lexicon
        ]
        return np.array(ids, np.int32)

    def coverage(self, corpus: TextCorpus, client_indices: Sequence[int] | np.ndarray) -> float:
        """Returns the share of in-vocabulary words, in [0, 1], among the given clients' words.

        It is NaN if these clients, (n,) distinct indices, have no words.
        """
        corpus = corpus.subset(client_indices)
        is_known = self.ids(corpus.lexicon) < self.num_known
        return float(is_known[corpus.words].mean()) if corpus.words.size else float("nan")


def build_vocabulary(
    corpus: TextCorpus,
    client_indices: Sequence[int] | np.ndarray,
    *,
    vocab_size: int,
    num_oov_buckets: int,
    known_words: str = "most_frequent",
) -> Vocabulary:
    """Makes a vocabulary of the training clients' words.

    Args:
        corpus: The corpus.
        client_indices: (n,) distinct integers in [0, num_clients), the training clients; words of
            other clients are ignored.
        vocab_size: The number of words, >= 1; of equally frequent ones the alphabetically first.
        num_oov_buckets: The number of buckets that the other words share, >= 1.
        known_words: One of `KNOWN_WORDS`: the most frequent words, or those of the most clients.
            The latter exclude words that a single client repeats.

    Raises:
        UserError: If the clients have fewer distinct words.
    """
    check_count("vocab_size", vocab_size, minimum=1)
    check_choice("build_vocabulary", "known_words", known_words, KNOWN_WORDS)
    corpus = corpus.subset(client_indices)
    words = corpus.words
    if known_words == "most_users":
        words = np.unique(corpus.word_clients * corpus.lexicon.size + words) % corpus.lexicon.size
    counts = np.bincount(words, minlength=corpus.lexicon.size)
    present = np.flatnonzero(counts)
    if vocab_size > present.size:
        raise UserError(
            f"--vocab_size={vocab_size} is more than the {present.size} distinct words that the"
            f" {len(client_indices)} training clients have"
        )
    ranked = sorted(present, key=lambda i: (-counts[i], corpus.lexicon[i]))
    return Vocabulary(corpus.lexicon[ranked[:vocab_size]], num_oov_buckets)


def next_word_examples(
    corpus: TextCorpus, vocabulary: Vocabulary, *, sequence_length: int = 20
) -> ClientDataset:
    """Makes each sentence an example whose labels are its words shifted by one.

    The tokens of a sentence are `BOS`, its words and `EOS`. They are cut to
    `sequence_length + 1` tokens, so that a longer sentence has no `EOS`, as in the FedRecon
    paper's data, or padded by `PAD`. Labels of `PAD` are not predicted.

    Args:
        corpus: The sentences.
        vocabulary: The words' ids.
        sequence_length: The number of predicted tokens of a sentence, >= 1.

    Returns:
        A dataset with labels (n, sequence_length) int32, all tokens except the first, and
        features of the same shape and dtype:
            "token": all tokens except the last, in [0, vocabulary.size).
            "known_token": the token if it is no bucket, else 0.
            "oov_token": the number of the bucket, from 0, if the token is a bucket, else 0.
    """
    length = check_count("sequence_length", sequence_length, minimum=1)
    word_counts = np.diff(corpus.sentence_offsets)
    kept = np.minimum(word_counts, length)
    sentences = np.repeat(np.arange(kept.size), kept)
    places = np.arange(sentences.size) - np.repeat(np.cumsum(kept) - kept, kept)
    words = corpus.words[corpus.sentence_offsets[sentences] + places]
    tokens = np.full((corpus.num_sentences, length + 1), PAD, np.int32)
    tokens[:, 0] = BOS
    tokens[sentences, places + 1] = vocabulary.ids(corpus.lexicon)[words]
    short = np.flatnonzero(word_counts < length)
    tokens[short, word_counts[short] + 1] = EOS
    token = np.ascontiguousarray(tokens[:, :-1])
    is_known = token < vocabulary.num_known
    return ClientDataset(
        client_ids=corpus.client_ids,
        offsets=corpus.client_offsets,
        features={
            "token": token,
            "known_token": np.where(is_known, token, 0),
            "oov_token": np.where(is_known, 0, token - np.int32(vocabulary.num_known)),
        },
        labels=np.ascontiguousarray(tokens[:, 1:]),
    )

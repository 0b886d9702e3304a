"""Words as numbers: padding, sentence ends, known words, buckets; and next words as examples."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sentences import TextCorpus
from fedpersonal.data.sources import check_count, check_distinct
from fedpersonal.errors import UserError, check_choice

PAD = 0
BOS = 1
EOS = 2
NUM_SPECIAL = 3
# Which words are known, as of `build_vocabulary`.
KNOWN_WORDS = ("most_frequent", "most_users")


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The known words, and how many buckets all others are hashed into.

    With V words and B buckets, the ids are `PAD` 0, `BOS` 1 and `EOS` 2 (before and after a
    sentence), the words 3 to V + 2, and the out-of-vocabulary buckets V + 3 to V + 2 + B.

    Attributes:
        words: (V,) distinct words, str objects, those of the highest counts first.
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
        """How many ids are not buckets, V + 3: the rows of a global embedding."""
        return self.words.size + NUM_SPECIAL

    @property
    def size(self) -> int:
        """How many ids there are, V + 3 + B: the width of a softmax over them."""
        return self.num_known + self.num_oov_buckets

    def ids(self, lexicon: Sequence[str] | np.ndarray) -> np.ndarray:
        """The ids of (n,) words: (n,) int32, each in [3, size).

        A word out of the vocabulary has the bucket of the CRC-32 of its UTF-8 bytes, which is
        the same in every process.
        """
        known = {word: i for i, word in enumerate(self.words, start=NUM_SPECIAL)}
        first, buckets = self.num_known, self.num_oov_buckets
        ids = [
            known[word] if word in known else first + zlib.crc32(word.encode()) % buckets
            for word in lexicon
        ]
        return np.array(ids, np.int32)

    def coverage(self, corpus: TextCorpus, client_indices: Sequence[int] | np.ndarray) -> float:
        """Returns the share of known ones, in [0, 1], among the words of some clients.

        It is not a number if these clients, (n,) distinct indices, wrote no word.
        """
        corpus = corpus.subset(client_indices)
        known = self.ids(corpus.lexicon) < self.num_known
        return float(known[corpus.words].mean()) if corpus.words.size else float("nan")


def build_vocabulary(
    corpus: TextCorpus,
    client_indices: Sequence[int] | np.ndarray,
    *,
    vocab_size: int,
    num_oov_buckets: int,
    known_words: str = "most_frequent",
) -> Vocabulary:
    """Makes a vocabulary of words of the training clients.

    Args:
        corpus: The corpus.
        client_indices: (n,) distinct integers in [0, num_clients), the training clients: no other's
            words are looked at.
        vocab_size: How many words to take, >= 1; of equally frequent ones the first by alphabet.
        num_oov_buckets: How many buckets the other words share, >= 1.
        known_words: One of `KNOWN_WORDS`: the most frequent words, or those that most clients
            write, so that what one client repeats stays unknown.

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
    there = np.flatnonzero(counts)
    if vocab_size > there.size:
        raise UserError(
            f"--vocab_size={vocab_size} is more than the {there.size} distinct words that the"
            f" {len(client_indices)} training clients have"
        )
    ranked = sorted(there, key=lambda i: (-counts[i], corpus.lexicon[i]))
    return Vocabulary(corpus.lexicon[ranked[:vocab_size]], num_oov_buckets)


def next_word_examples(
    corpus: TextCorpus, vocabulary: Vocabulary, *, sequence_length: int = 20
) -> ClientDataset:
    """Makes each sentence an example, its words shifted by one as its labels.

    A sentence is `BOS`, its words and `EOS`, cut after `sequence_length + 1` of these tokens
    (so a longer sentence has no `EOS`, as in the FedRecon paper's data) or filled up to as
    many by `PAD`. A label of `PAD` is not to be predicted.

    Args:
        corpus: The sentences.
        vocabulary: The words' ids.
        sequence_length: How many tokens to predict in a sentence, >= 1.

    Returns:
        A dataset with labels (n, sequence_length) int32, all tokens but the first, and the
        features, alike:
            "token": all tokens but the last, in [0, vocabulary.size).
            "known_token": the token if it is no bucket, else 0.
            "oov_token": the number of its bucket, from 0, if it is one, else 0.
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
    known = token < vocabulary.num_known
    return ClientDataset(
        client_ids=corpus.client_ids,
        offsets=corpus.client_offsets,
        features={
            "token": token,
            "known_token": np.where(known, token, 0),
            "oov_token": np.where(known, 0, token - np.int32(vocabulary.num_known)),
        },
        labels=np.ascontiguousarray(tokens[:, 1:]),
    )

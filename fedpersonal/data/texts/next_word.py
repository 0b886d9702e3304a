"""Sentences as examples of predicting each next word."""

from __future__ import annotations

import numpy as np

from fedpersonal.data.checks import check_count
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.texts.corpus import TextCorpus
from fedpersonal.data.texts.vocabulary import BOS, EOS, PAD, Vocabulary


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

"""Baselines of next word prediction: the most frequent word, and counts of trigrams.

They are not personalised: words are counted over all training clients' sentences.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.evaluation.baselines import Baseline
from fedpersonal.suite.readers.vocabulary import EOS, NUM_SPECIAL, PAD, Vocabulary
from fedpersonal.suite.tasks.next_word.data import NextWordData
from fedpersonal.suite.tasks.task import EvaluationSet

# Contexts whose scores of all ids are in memory at once.
_BLOCK = 512


class Choices(NamedTuple):
    """Predictions of each target, int64 (num_sentences, sequence_length) both.

    Attributes:
        likeliest: The most likely id.
        likeliest_in_vocabulary: The most likely id that is no bucket.
    """

    likeliest: np.ndarray
    likeliest_in_vocabulary: np.ndarray


def predict_most_frequent(
    train: ClientDataset, query: ClientDataset, vocabulary: Vocabulary
) -> Choices:
    """Predicts the training clients' most frequent word of the vocabulary everywhere."""
    counts = np.bincount(train.labels.reshape(-1), minlength=vocabulary.size)
    word = NUM_SPECIAL + int(counts[NUM_SPECIAL : vocabulary.num_known].argmax())
    choices = np.full(query.labels.shape, word)
    return Choices(choices, choices)


def predict_by_trigrams(
    train: ClientDataset, query: ClientDataset, vocabulary: Vocabulary
) -> Choices:
    """Predicts by interpolated counts of three tokens, of two and of one.

    If a context was seen n times, before d different tokens, a token's probability is (c + d p) /
    (n + d), where c is the token's count after the context and p its probability after the context
    without its first token (Witten and Bell, "The Zero-Frequency Problem", IEEE Transactions on
    Information Theory 37(4), 1991).

    Args:
        train: Sentences to count, as from `next_word_examples`.
        query: Sentences to predict.
        vocabulary: The sentences' vocabulary.
    """
    size = vocabulary.size
    pairs, lasts, targets = _contexts(train, size)
    is_token = targets != PAD
    pairs, lasts, targets = pairs[is_token], lasts[is_token], targets[is_token]
    single = np.bincount(targets, minlength=size) / max(1, targets.size)
    seen, places = np.unique(pairs, return_inverse=True)
    by_one, by_two = _count(lasts, targets, size, size), _count(places, targets, seen.size, size)

    queried, which = np.unique(_contexts(query, size)[0], return_inverse=True)
    chosen = np.empty((2, queried.size), np.int64)
    for start in range(0, queried.size, _BLOCK):
        block = queried[start : start + _BLOCK]
        scores = _interpolate(by_one, block % size, single)
        at = np.searchsorted(seen, block)
        is_seen = np.isin(block, seen)
        scores[is_seen] = _interpolate(by_two, at[is_seen], scores[is_seen])
        best = scores.argmax(1), scores[:, : vocabulary.num_known].argmax(1)
        chosen[:, start : start + _BLOCK] = best
    return Choices(*(row[which].reshape(query.labels.shape) for row in chosen))


PREDICTORS = {"Most frequent word": predict_most_frequent, "Trigram counts": predict_by_trigrams}


def word_baselines(data: NextWordData, part: EvaluationSet) -> dict[str, Baseline]:
    """Returns the metrics of each predictor, by its name in lower case.

    Args:
        data: The sentences; the result is empty if clients are read only when they are sampled.
        part: The data's `validation` or `test` clients.
    """
    if not isinstance(data.train, ClientDataset):
        return {}
    return {name.lower(): Baseline.from_sums(_count_right(data, name, part)) for name in PREDICTORS}


def score_choices(data: NextWordData, name: str) -> dict[str, np.ndarray]:
    """Returns columns as in a run's `per_client.csv`, with a row for each test client.

    Args:
        data: The sentences.
        name: One of `PREDICTORS`.

    Raises:
        UserError: If the training clients are read only when they are sampled.
    """
    if not isinstance(data.train, ClientDataset):
        raise UserError(f"{name}: {data.name} is too large to be counted as a whole.")
    metrics = _count_right(data, name, data.test)
    return {
        "client": data.test.query.client_ids,
        "num_known_words": metrics["accuracy_among_known"][:, 1],
        "num_after_personal_words": metrics["personal_word_accuracy"][:, 1],
        **{
            f"{name}_after": pairs[:, 0] / np.maximum(pairs[:, 1], 1)
            for name, pairs in metrics.items()
        },
    }


def _count_right(data: NextWordData, name: str, part: EvaluationSet) -> dict[str, np.ndarray]:
    """Returns metric's name to the numbers of right and of all targets, (num_clients, 2)."""
    assert isinstance(data.train, ClientDataset)
    query, num_known = part.query, data.vocabulary.num_known
    choices = PREDICTORS[name](data.train, query, data.vocabulary)

    def sums(labels: np.ndarray, chosen: np.ndarray, is_target: np.ndarray) -> np.ndarray:
        right = is_target & (chosen == labels)
        clients, count = query.example_clients, query.num_clients
        masks = (right, is_target)
        columns = [np.bincount(clients, mask.sum(1), count).astype(np.int64) for mask in masks]
        return np.stack(columns, axis=-1)

    labels = query.labels
    is_token = labels != PAD
    is_known = is_token & (labels < num_known)
    is_word = is_known & (labels != EOS)
    metrics = {
        "accuracy": sums(labels, choices.likeliest, is_token),
        "accuracy_without_oov": sums(labels, choices.likeliest, is_known),
        "accuracy_without_oov_or_eos": sums(labels, choices.likeliest, is_word),
        "accuracy_among_known": sums(labels, choices.likeliest_in_vocabulary, is_word),
    }
    if part is data.test:
        personal = data.after_personal_words.query.labels
        is_target = (personal != PAD) & (personal != EOS) & (personal < num_known)
        predicted = choices.likeliest_in_vocabulary
        metrics["personal_word_accuracy"] = sums(personal, predicted, is_target)
    return metrics


def _contexts(sentences: ClientDataset, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, for each target, an id of the two tokens before it, the last of them, and itself."""
    token = sentences.features["token"].astype(np.int64)
    before = np.pad(token, ((0, 0), (1, 0)), constant_values=PAD)[:, :-1]
    columns = before * size + token, token, sentences.labels
    pairs, lasts, targets = (column.reshape(-1) for column in columns)
    return pairs, lasts, targets


def _count(
    contexts: np.ndarray, targets: np.ndarray, num_contexts: int, size: int
) -> scipy.sparse.csr_matrix:
    """Counts targets by context, (num_contexts, size)."""
    ones = np.ones(targets.size)
    return scipy.sparse.csr_matrix((ones, (contexts, targets)), (num_contexts, size))


def _interpolate(
    counts: scipy.sparse.csr_matrix, rows: np.ndarray, shorter: np.ndarray
) -> np.ndarray:
    """Returns probabilities of all ids, (n, size), from rows of counts and shorter contexts."""
    selected = counts[rows]
    # An unseen context gets the probabilities of the shorter one.
    weight = np.maximum(selected.getnnz(1), 1)[:, np.newaxis]
    return (selected.toarray() + weight * shorter) / (selected.sum(1).A + weight)

"""Who knows the context predicts generated words well, and who knows the speaker better."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest

from fedpersonal.data.generated.dialogues import CONTEXTS, generate_dialogues
from fedpersonal.data.sentences import count_words, split_sentences
from fedpersonal.errors import UserError


def _words(texts) -> list[list[str]]:
    return [("<s> " + text + " </s>").split() for text in texts]


def _perplexity(train, test, num_words) -> float:
    """Of a smoothed bigram model, counted for each group of texts on its own."""
    loss = count = 0
    for group, texts in test.items():
        pairs, firsts = collections.Counter(), collections.Counter()
        for words in train[group]:
            pairs.update(zip(words, words[1:]))
            firsts.update(words[:-1])
        for words in texts:
            for first, second in zip(words, words[1:]):
                share = (pairs[first, second] + 0.02) / (firsts[first] + 0.02 * num_words)
                loss, count = loss - math.log(share), count + 1
    return math.exp(loss / count)


def test_the_context_helps_and_the_speaker_helps_more():
    dialogues = generate_dialogues(seed=1).named
    words = _words(dialogues.texts)
    num_words = len({word for text in words for word in text})
    speakers = dialogues.to_client_dataset().example_clients
    perplexities = []
    for groups in (np.zeros_like(speakers), dialogues.labels, speakers):
        train, test = collections.defaultdict(list), collections.defaultdict(list)
        for i, (group, text) in enumerate(zip(groups, words)):
            (train if i % 2 else test)[group].append(text)
        perplexities.append(_perplexity(train, test, num_words))
    everyone, context, speaker = perplexities
    assert context < 0.95 * everyone
    assert speaker < 0.75 * context


def test_contexts_have_words_of_their_own():
    dialogues = generate_dialogues(seed=2).named
    own = [{w for part in context[:3] for w in part.split()} for context in CONTEXTS.values()]
    assert not own[0] & own[1]
    for text, context in zip(dialogues.texts, dialogues.labels):
        said = set(text.replace(",", " ").split())
        assert len(said & own[context]) == 3 and not said & own[1 - context]
        assert split_sentences(text) == [text]
    assert count_words(dialogues.texts).min() >= 8


def test_sizes_and_seeds():
    dialogues, again, other = (generate_dialogues(seed=seed) for seed in (3, 3, 4))
    for part, same, differing, users in (
        (dialogues.named, again.named, other.named, (6, 8)),
        (dialogues.others, again.others, other.others, (15, 15)),
    ):
        assert part.texts.size == 6000
        assert part.num_clients == sum(users)
        assert part.label_names.tolist() == list(CONTEXTS)
        first = part.labels[part.offsets[:-1]]
        assert np.bincount(first).tolist() == list(users)
        assert part.texts.tolist() == same.texts.tolist() != differing.texts.tolist()
    assert not set(dialogues.named.client_ids) & set(dialogues.others.client_ids)
    small = generate_dialogues(users_per_context=(1, 2), num_utterances=9, seed=0).named
    assert np.diff(small.offsets).tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"users_per_context": (1,)}, r"users_per_context must be .* each of 2 contexts, got \(1,"),
        ({"users_per_context": 5}, "users_per_context must be a number for each of 2 contexts"),
        ({"users_per_context": (0, 1)}, r"users_per_context\[0\] must be a whole number >= 1"),
        ({"others_per_context": (1, 0)}, r"others_per_context\[1\] must be a whole number >= 1"),
        ({"num_utterances": 41}, "num_utterances must be a whole number >= 42, got 41"),
        ({"num_other_utterances": 1}, "num_other_utterances must be a whole number >= 90, got 1"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        generate_dialogues(**{"seed": 0, **options})

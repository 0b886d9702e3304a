"""Options and arguments of no use are refused in one line, before any file is read."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.batches import pad_batches, sample_examples, touched_rows
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.splits import split_clients, split_examples
from fedpersonal.errors import UserError
from fedpersonal.suite.readers.documents import load_reddit, read_documents
from fedpersonal.suite.readers.encoders import CharacterVocabulary, HashedWords, build_characters
from fedpersonal.suite.readers.generated.corpus import generate_corpus
from fedpersonal.suite.readers.generated.dialogues import generate_dialogues
from fedpersonal.suite.readers.generated.documents import generate_subreddits
from fedpersonal.suite.readers.generated.ratings import generate_ratings
from fedpersonal.suite.readers.ranking import sample_unrated
from fedpersonal.suite.readers.ratings import read_ratings
from fedpersonal.suite.readers.sentences import TextCorpus, read_text
from fedpersonal.suite.readers.utterances import read_utterances
from fedpersonal.suite.readers.vocabulary import Vocabulary, build_vocabulary, next_word_examples

ABSENT = "absent.csv"
# Client "a" has the words "x y", and the items 3 and 7.
CORPUS = TextCorpus("n", ["a"], [0, 1], [0, 2], [0, 1], ["x", "y"])
DATASET = ClientDataset(["a"], [0, 2], {"item": [3, 7]}, [1, 2])


def touch(ids, mask_shape=(1, 1, 2)):
    touched_rows(np.array(ids), np.ones(mask_shape))


def draw(client_indices=(0,), count=2):
    sample_examples(DATASET, client_indices, count=count, seed=0, round_number=1)


def pad(client_indices=(0,), batch_size=3):
    pad_batches(DATASET, client_indices, batch_size=batch_size)


def split(fractions=(0.8, 0.1, 0.1), seed=0):
    with pytest.raises(UserError) as caught:
        split_clients(10, fractions=fractions, seed=seed)
    with pytest.raises(UserError, match="^" + str(caught.value)[:20]):
        split_examples(DATASET, fractions=fractions, seed=seed, ordered=False)
    raise caught.value


def known_words(vocab_size=2, num_oov_buckets=1):
    build_vocabulary(CORPUS, [0], vocab_size=vocab_size, num_oov_buckets=num_oov_buckets)


def ratings(**options):
    generate_ratings(**{"num_users": 9, "num_items": 50, "seed": 0, **options})


def subreddits(**options):
    generate_subreddits(**{"seed": 0, **options})


def dialogues(**options):
    generate_dialogues(**{"seed": 0, **options})


def corpus(**options):
    generate_corpus(**{"seed": 0, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pad([4]), "the index 4"),
        (lambda: pad(batch_size=0), "batch_size must be a whole number >= 1, got 0"),
        (lambda: pad(batch_size=2.0), "batch_size .* got 2.0"),
        (lambda: touch([[[1, -2]]]), "got -2"),
        (lambda: touch([[[1, 2**31]]]), "got 2147483648"),
        (lambda: touch([[[1.0, 2.0]]]), "float64"),
        (lambda: touch([[[1, 2]]], (1, 2)), r"mask of shape \(1, 2\)"),
        (lambda: draw(count=0), "count must be a whole number >= 1, got 0"),
        (lambda: draw([5]), "the index 5"),
        (lambda: draw([-1]), "the index -1"),
        (lambda: DATASET.client(1), "the index 1: there are 1 clients"),
        (lambda: DATASET.subset([0, -1]), "the index -1"),
        (lambda: DATASET.subset([0.5]), "float64"),
        (lambda: DATASET.subset([0, 0]), "'a' is there 2 times"),
        (lambda: DATASET.filter_examples(np.ones(1, bool)), r"bool of shape \(2,\)"),
        (lambda: DATASET.filter_examples(np.ones(2)), "got float64"),
        (lambda: DATASET.head(-1), "max_examples must be a whole number >= 0, got -1"),
        (lambda: CORPUS.subset([0, 0]), "'a' is there 2 times"),
        (lambda: CORPUS.subset([3]), "no client has the index 3"),
        (lambda: split((0.8, 0.1, 0.2)), r"sum to 1, got \(0.8, 0.1, 0.2\)"),
        (lambda: split((1.2, -0.1, -0.1)), "fractions must be three numbers"),
        (lambda: split((0.9, 0.1)), "fractions must be three numbers"),
        (lambda: split(("a", "b", "c")), "fractions must be three numbers"),
        (lambda: split((float("nan"), 0.5, 0.5)), "fractions must be three numbers"),
        (lambda: split(seed=-1), "seed must be a whole number >= 0, got -1"),
        (lambda: split(seed=None), "seed .* got None"),
        (
            lambda: sample_unrated(DATASET, num_items=5, seed=0),
            r"items must be in \[0, num_items=5\), got 7",
        ),
        (lambda: sample_unrated(DATASET, num_items=9, seed=0.5), "seed .* got 0.5"),
        (lambda: CharacterVocabulary("aba"), "characters must be distinct, but 'a' is there 2"),
        (lambda: CharacterVocabulary("a").encode(["a"], length=0), "length must be .* got 0"),
        (lambda: build_characters(["a"], num_characters=0), "num_characters must be .* got 0"),
        (lambda: HashedWords(0), "num_buckets must be a whole number >= 1, got 0"),
        (lambda: Vocabulary(["a", "b", "b"], 1), "must be distinct, but 'b' is there 2 times"),
        (
            lambda: known_words(4),
            "vocab_size=4 is more than the 2 distinct words that the 1 training clients have",
        ),
        (lambda: known_words(0), "vocab_size must be a whole number >= 1, got 0"),
        (lambda: known_words(num_oov_buckets=0), "num_oov_buckets must be .* >= 1, got 0"),
        (
            lambda: next_word_examples(CORPUS, Vocabulary(["a"], 1), sequence_length=0),
            "sequence_length must be a whole number >= 1, got 0",
        ),
        (lambda: read_text(ABSENT, min_sentences=0), "min_sentences must be .* >= 1, got 0"),
        (lambda: read_text(ABSENT, max_sentences=1), "max_sentences must be .* >= 2, got 1"),
        (lambda: read_ratings(ABSENT, min_ratings=0), "min_ratings must be .* >= 1, got 0"),
        (
            lambda: read_ratings(ABSENT, user_column="who", item_column="who"),
            "must be different ones, got who, who, rating, time",
        ),
        (lambda: read_documents(ABSENT, num_labels=1), "num_labels must be .* >= 2, got 1"),
        (lambda: read_documents(ABSENT, min_texts=0), "min_texts must be .* >= 1, got 0"),
        (lambda: read_documents(ABSENT, max_texts=14), "max_texts must be .* >= 15, got 14"),
        (
            lambda: read_documents(ABSENT, label_column="user"),
            "must be different ones, got user, text, user, time",
        ),
        (lambda: load_reddit(min_texts=0), "min_texts must be a whole number >= 1, got 0"),
        (lambda: read_utterances(ABSENT, min_utterances=0), "min_utterances .* >= 1, got 0"),
        (
            lambda: read_utterances(ABSENT, min_context_utterances=0),
            "min_context_utterances must be a whole number >= 1",
        ),
        (lambda: read_utterances(ABSENT, min_tokens=0), "min_tokens must be .* >= 1, got 0"),
        (lambda: read_utterances(ABSENT, users_per_context=0), "users_per_context .* >= 1, got 0"),
        (
            lambda: read_utterances(ABSENT, users_per_context={}),
            "users_per_context must name a context",
        ),
        (
            lambda: read_utterances(ABSENT, users_per_context={"x": 0}),
            r"users_per_context\['x'\] must be a whole number >= 1",
        ),
        (
            lambda: read_utterances(ABSENT, context_column="user"),
            "must be different ones, got user, text, user, time",
        ),
        (lambda: ratings(num_users=0), "num_users must be a whole number >= 1, got 0"),
        (lambda: ratings(rank=0), "rank .* got 0"),
        (lambda: ratings(min_ratings=30, max_ratings=29), "max_ratings must be .* >= 30, got 29"),
        (lambda: ratings(min_ratings=51), "min_ratings=51 are more than num_items=50"),
        (lambda: ratings(seed=-1), "seed .* got -1"),
        (lambda: subreddits(num_users=0), "num_users must be a whole number >= 1, got 0"),
        (lambda: subreddits(num_labels=2), "num_labels must be a whole number >= 3, got 2"),
        (lambda: subreddits(num_labels=9), "num_labels must be at most 8"),
        (lambda: subreddits(texts_per_user=(0, 5)), r"texts_per_user\[0\] must be .* >= 1, got 0"),
        (lambda: subreddits(texts_per_user=(5, 4)), r"texts_per_user\[1\] must be .* >= 5, got 4"),
        (lambda: subreddits(texts_per_user=20), r"must be \(least, most\), got 20"),
        (lambda: subreddits(seed=-1), "seed must be a whole number >= 0, got -1"),
        (lambda: dialogues(users_per_context=(1,)), r"must be .* each of 2 contexts, got \(1,"),
        (lambda: dialogues(users_per_context=5), "must be a number for each of 2 contexts"),
        (lambda: dialogues(users_per_context=(0, 1)), r"users_per_context\[0\] must be .* >= 1"),
        (lambda: dialogues(others_per_context=(1, 0)), r"others_per_context\[1\] must be .* >= 1"),
        (lambda: dialogues(num_utterances=41), "num_utterances must be .* >= 42, got 41"),
        (lambda: dialogues(num_other_utterances=1), "num_other_utterances must be .* >= 90, got 1"),
        (lambda: dialogues(seed=-1), "seed must be a whole number >= 0, got -1"),
        (lambda: corpus(num_clients=0), "num_clients must be a whole number >= 1, got 0"),
        (lambda: corpus(seed=-1), "seed .* got -1"),
        (lambda: corpus(min_sentences=1), "min_sentences must be a whole number >= 2, got 1"),
        (lambda: corpus(max_sentences=39), "max_sentences must be a whole number >= 40, got 39"),
        (lambda: corpus(words_per_client=1), "words_per_client must be .* >= 2, got 1"),
        (lambda: corpus(num_personal_words=23), "num_personal_words must be .* >= 24, got 23"),
        (lambda: corpus(num_personal_words=70_000), "must be at most 64000, got 70000"),
        (lambda: corpus(personal_share=1.1), r"personal_share must be in \[0, 1\], got 1.1"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)

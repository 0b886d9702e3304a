"""The split of sentences and clients for next word prediction (Singhal et al., section 5.1.2)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.splits import check_num_clients, split_clients, split_support_query
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.readers.generated.corpus import generate_corpus
from fedpersonal.suite.readers.sentences import TextCorpus, read_text
from fedpersonal.suite.readers.stack_overflow import StackOverflow, StackOverflowClients
from fedpersonal.suite.readers.vocabulary import (
    EOS,
    PAD,
    Vocabulary,
    build_vocabulary,
    next_word_examples,
)
from fedpersonal.suite.tasks.next_word.options import (
    OTHER_SENTENCES,
    PAPER_SENTENCES,
    STACK_OVERFLOW,
)
from fedpersonal.suite.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.data.clients import ClientDataset
    from fedpersonal.suite.tasks.next_word.options import NextWordRun, SentenceOptions


@dataclasses.dataclass(frozen=True, eq=False)
class NextWordData(Data):
    """Sentences, split for one experiment.

    Attributes:
        vocabulary: The words' ids, from the training clients.
        after_personal_words: The test clients, with only the targets that follow a personal word: a
            word out of the vocabulary that is in the client's support set. All other targets are
            `EOS`, which metrics of words leave out.
        coverage: Share of the test clients' words that are in the vocabulary, or None.
    """

    vocabulary: Vocabulary
    after_personal_words: EvaluationSet
    coverage: float | None = None


def split_text(corpus: TextCorpus, options: NextWordRun) -> NextWordData:
    """Splits the clients of a corpus 80/10/10 % and turns their sentences into examples.

    Raises:
        UserError: If there are too few clients, or fewer words than `vocab_size`.
    """
    advice = "Lower --min_sentences?"
    check_num_clients(corpus.name, corpus.num_clients, minimum=10, advice=advice)
    train, validation, test = split_clients(corpus.num_clients, seed=options.seed)
    vocabulary = build_vocabulary(
        corpus,
        train,
        vocab_size=options.vocab_size,
        num_oov_buckets=options.num_oov_buckets or 1,
        known_words=options.known_words,
    )
    examples = next_word_examples(corpus, vocabulary, sequence_length=options.sequence_length)
    validation = validation[: options.max_validation_clients or None]
    test_set, after_personal_words = _test_sets(
        corpus.subset(test), vocabulary, options, options.sequence_length
    )
    return NextWordData(
        corpus.name,
        examples.subset(train),
        _evaluation_set(examples.subset(validation), options),
        test_set,
        vocabulary,
        after_personal_words,
        vocabulary.coverage(corpus, test),
    )


def sample_stack_overflow(
    data: StackOverflow, options: NextWordRun, *, max_test_clients: int = 2_000
) -> NextWordData:
    """Prepares TFF's Stack Overflow with its three parts, and samples the evaluated clients."""

    def sample(part: StackOverflowClients, count: int, purpose: Purpose) -> np.ndarray:
        order = generator(purpose, options.seed).permutation(part.num_clients)
        return order[: count or None]

    validation = sample(data.validation, options.max_validation_clients, Purpose.VALIDATION_CLIENTS)
    test_set, after_personal_words = _test_sets(
        data.test.corpus(sample(data.test, max_test_clients, Purpose.TEST_CLIENTS)),
        data.vocabulary,
        options,
        data.test.sequence_length,
    )
    return NextWordData(
        data.name,
        data.train,
        _evaluation_set(data.validation.subset(validation), options),
        test_set,
        data.vocabulary,
        after_personal_words,
    )


def _test_sets(
    corpus: TextCorpus, vocabulary: Vocabulary, options: NextWordRun, sequence_length: int
) -> tuple[EvaluationSet, EvaluationSet]:
    """Returns the test clients, and the same with targets after personal words only."""
    length = {"sequence_length": sequence_length}
    test_set = _evaluation_set(next_word_examples(corpus, vocabulary, **length), options)
    # The ids of this vocabulary are exact: no words share a bucket.
    words = Vocabulary(corpus.lexicon, num_oov_buckets=1)
    exact = _evaluation_set(next_word_examples(corpus, words, **length), options)
    is_unknown = np.zeros(words.size, bool)
    is_unknown[words.ids(corpus.lexicon)] = vocabulary.ids(corpus.lexicon) >= vocabulary.num_known

    def client_words(part: ClientDataset) -> np.ndarray:
        return part.example_clients[:, np.newaxis] * words.size + part.features["token"]

    support, query = exact.support, exact.query
    personal = client_words(support)[is_unknown[support.features["token"]]]
    is_target = np.isin(client_words(query), personal) | (query.labels == PAD)
    labels = np.where(is_target, test_set.query.labels, np.int32(EOS))
    after_personal_words = dataclasses.replace(test_set.query, labels=labels)
    return test_set, dataclasses.replace(test_set, query=after_personal_words)


def _evaluation_set(dataset: ClientDataset, options: NextWordRun) -> EvaluationSet:
    parts = options.split_options()
    if parts["split"] == "shared":  # Query sets must not be in support sets.
        parts["split"] = "aggregated"
    return EvaluationSet(
        *split_support_query(dataset, batch_size=options.client_batch_size, **parts)
    )


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences that options name; they are read when they are first needed.

    Attributes:
        kind: `generated`, `file` or `stack_overflow`.
        path: The table of a `file`; the folder of TFF's data of `stack_overflow`.
        options: Which sentences are kept.
    """

    kind: str
    path: str | None
    options: SentenceOptions

    @property
    def is_paper_data(self) -> bool:
        """Whether these are the data of the paper's results."""
        return self.kind == STACK_OVERFLOW

    @property
    def max_sentences(self) -> int:
        """The maximal number of sentences kept for each user."""
        usual = PAPER_SENTENCES if self.is_paper_data else OTHER_SENTENCES
        return self.options.max_sentences or usual

    @functools.cached_property
    def corpus(self) -> TextCorpus:
        """The sentences of a table, or generated ones."""
        options = self.options
        if self.kind == "generated":
            # One corpus for all seeds; seeds differ in the split.
            return options.choose_users(generate_corpus(seed=0))
        assert self.path  # A table has one.
        corpus = read_text(
            options.table(self.path),
            **options.columns("user", "text", "time"),
            min_sentences=options.min_sentences,
            max_sentences=self.max_sentences,
            kept_sentences=options.kept_sentences,
            cache_dir=options.cache_dir,
        )
        return options.choose_users(corpus)

    @property
    def name(self) -> str:
        """The data set's name."""
        return STACK_OVERFLOW if self.is_paper_data else self.corpus.name

    def summary(self) -> str:
        """Returns a line on the size of the data, and on rows of a table that were left out."""
        if self.is_paper_data:
            return f"{STACK_OVERFLOW}: TFF's federated data"
        return self.corpus.summary()

    def fingerprint(self) -> str:
        """Returns a hash of the sentences, or the name of TFF's data."""
        return STACK_OVERFLOW if self.is_paper_data else self.corpus.fingerprint()

    def describe(self) -> dict[str, object]:
        """Returns the entries that distinguish these sentences from others, and sizes if known."""
        return {
            **({"dataset": STACK_OVERFLOW} if self.is_paper_data else self.corpus.describe()),
            "max_sentences": self.max_sentences,
            "max_validation_clients": self.options.max_validation_clients or None,
        }

    def num_distinct_words(self, seeds: Iterable[int]) -> int | None:
        """Returns the number of distinct words of training users, the least over these splits.

        None means more than any option can request.
        """
        if self.is_paper_data:
            return None
        trainers = (split_clients(self.corpus.num_clients, seed=seed)[0] for seed in seeds)
        return min(int(np.unique(self.corpus.subset(train).words).size) for train in trainers)

"""Who trains on which sentences, and who is evaluated on which (Singhal et al., section 5.1.2)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.splits import check_num_clients, split_clients, split_support_query
from fedpersonal.data.texts.corpus import TextCorpus
from fedpersonal.data.texts.next_word import next_word_examples
from fedpersonal.data.texts.stack_overflow import StackOverflow, StackOverflowClients
from fedpersonal.data.texts.vocabulary import EOS, PAD, Vocabulary, build_vocabulary
from fedpersonal.draws import Purpose, generator
from fedpersonal.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.tasks.next_word.task import NextWordRun


@dataclasses.dataclass(frozen=True, eq=False)
class NextWordData(Data):
    """Sentences, split for one experiment.

    Attributes:
        vocabulary: The words' ids, from the training clients.
        after_personal_words: The test clients, of whose query sets only what follows a personal
            word is to be predicted: a word out of the vocabulary that is in the client's support
            set. All other targets are `EOS`, which metrics of words leave out.
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
    some = validation[: options.max_validation_clients or None]
    tested, after_personal_words = _tested(
        corpus.subset(test), vocabulary, options, options.sequence_length
    )
    return NextWordData(
        corpus.name,
        examples.subset(train),
        _evaluated(examples.subset(some), options),
        tested,
        vocabulary,
        after_personal_words,
        vocabulary.coverage(corpus, test),
    )


def sample_stack_overflow(
    data: StackOverflow, options: NextWordRun, *, max_test_clients: int = 2_000
) -> NextWordData:
    """Prepares TFF's Stack Overflow: its own three parts, the evaluated ones a random sample."""

    def sample(part: StackOverflowClients, count: int, purpose: Purpose) -> np.ndarray:
        order = generator(purpose, options.seed).permutation(part.num_clients)
        return order[: count or None]

    some = sample(data.validation, options.max_validation_clients, Purpose.VALIDATION_CLIENTS)
    tested, after_personal_words = _tested(
        data.test.corpus(sample(data.test, max_test_clients, Purpose.TEST_CLIENTS)),
        data.vocabulary,
        options,
        data.test.sequence_length,
    )
    return NextWordData(
        data.name,
        data.train,
        _evaluated(data.validation.subset(some), options),
        tested,
        data.vocabulary,
        after_personal_words,
    )


def _tested(
    corpus: TextCorpus, vocabulary: Vocabulary, options: NextWordRun, sequence_length: int
) -> tuple[EvaluationSet, EvaluationSet]:
    """Returns the test clients, and the same with what follows their personal words alone."""
    length = {"sequence_length": sequence_length}
    tested = _evaluated(next_word_examples(corpus, vocabulary, **length), options)
    # Words themselves, which share no buckets.
    words = Vocabulary(corpus.lexicon, num_oov_buckets=1)
    exact = _evaluated(next_word_examples(corpus, words, **length), options)
    is_unknown = np.zeros(words.size, bool)
    is_unknown[words.ids(corpus.lexicon)] = vocabulary.ids(corpus.lexicon) >= vocabulary.num_known

    def of_clients(part: ClientDataset) -> np.ndarray:
        return part.example_clients[:, np.newaxis] * words.size + part.features["token"]

    support, query = exact.support, exact.query
    personal = of_clients(support)[is_unknown[support.features["token"]]]
    counts = np.isin(of_clients(query), personal) | (query.labels == PAD)
    labels = np.where(counts, tested.query.labels, np.int32(EOS))
    chosen = dataclasses.replace(tested.query, labels=labels)
    return tested, dataclasses.replace(tested, query=chosen)


def _evaluated(dataset: ClientDataset, options: NextWordRun) -> EvaluationSet:
    parts = options.split_options()
    if parts["split"] == "shared":  # What is predicted must not be known.
        parts["split"] = "aggregated"
    return EvaluationSet(
        *split_support_query(dataset, batch_size=options.client_batch_size, **parts)
    )

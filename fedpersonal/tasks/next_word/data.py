"""Who trains on which sentences, and who is evaluated on which (Singhal et al., section 5.1.2)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.splits import check_num_clients, split_clients, split_support_query
from fedpersonal.data.texts.corpus import TextCorpus
from fedpersonal.data.texts.next_word import next_word_examples
from fedpersonal.data.texts.stack_overflow import StackOverflow
from fedpersonal.data.texts.vocabulary import Vocabulary, build_vocabulary
from fedpersonal.simulation.clients import ReadWhenDrawn
from fedpersonal.tasks.task import Data, EvaluationSet


@dataclasses.dataclass(frozen=True, eq=False)
class NextWordData(Data):
    """Sentences, split for one experiment.

    Attributes:
        vocabulary: The words' ids, from the training clients.
        coverage: Share of the test clients' words that are in the vocabulary, or None.
    """

    vocabulary: Vocabulary
    coverage: float | None = None


def split_text(
    corpus: TextCorpus,
    *,
    vocab_size: int,
    num_oov_buckets: int,
    sequence_length: int,
    batch_size: int,
    support_query_split: str,
    seed: int,
    max_validation_clients: int | None = None,
) -> NextWordData:
    """Splits the clients of a corpus 80/10/10 % and turns their sentences into examples.

    Args:
        corpus: The sentences.
        vocab_size: Known words, the most frequent of the training clients.
        num_oov_buckets: Hash buckets of all other words.
        sequence_length: Tokens a sentence.
        batch_size: Sentences a batch, which support and query sets are split by.
        support_query_split: `skip`, `aggregated`, or `shared`, which evaluates as `aggregated`:
            what is predicted must not have been seen.
        seed: Seed of the split.
        max_validation_clients: Validates on so many at most; None for all.

    Raises:
        UserError: If there are too few clients, or fewer words than `vocab_size`.
    """
    advice = "Lower --min_sentences?"
    check_num_clients(corpus.name, corpus.num_clients, minimum=10, advice=advice)
    train, validation, test = split_clients(corpus.num_clients, seed=seed)
    vocabulary = build_vocabulary(
        corpus, train, vocab_size=vocab_size, num_oov_buckets=num_oov_buckets
    )
    examples = next_word_examples(corpus, vocabulary, sequence_length=sequence_length)
    some = validation[:max_validation_clients]
    return NextWordData(
        corpus.name,
        examples.subset(train),
        _evaluated(examples.subset(some), batch_size, support_query_split),
        _evaluated(examples.subset(test), batch_size, support_query_split),
        vocabulary,
        vocabulary.coverage(corpus, test),
    )


def sample_stack_overflow(
    data: StackOverflow,
    *,
    batch_size: int,
    support_query_split: str,
    seed: int,
    max_validation_clients: int | None = 500,
    max_test_clients: int | None = 2_000,
) -> NextWordData:
    """Prepares TFF's Stack Overflow: its own three parts, the evaluated ones a random sample."""

    def sample(part: ReadWhenDrawn, count: int | None) -> EvaluationSet:
        order = np.random.default_rng(seed).permutation(part.num_clients)[:count]
        return _evaluated(part.subset(order), batch_size, support_query_split)

    return NextWordData(
        data.name,
        data.train,
        sample(data.validation, max_validation_clients),
        sample(data.test, max_test_clients),
        data.vocabulary,
    )


def _evaluated(dataset: ClientDataset, batch_size: int, split: str) -> EvaluationSet:
    split = "aggregated" if split == "shared" else split
    return EvaluationSet(*split_support_query(dataset, batch_size=batch_size, split=split))

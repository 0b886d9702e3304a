"""Who trains on which sentences, and who is evaluated on which (Singhal et al., section 5.1.2)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.splits import check_num_clients, split_clients, split_support_query
from fedpersonal.data.texts.corpus import TextCorpus
from fedpersonal.data.texts.next_word import next_word_examples
from fedpersonal.data.texts.stack_overflow import StackOverflow
from fedpersonal.data.texts.vocabulary import Vocabulary, build_vocabulary
from fedpersonal.simulation.clients import ReadWhenDrawn
from fedpersonal.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.tasks.next_word.task import NextWordRun


@dataclasses.dataclass(frozen=True, eq=False)
class NextWordData(Data):
    """Sentences, split for one experiment.

    Attributes:
        vocabulary: The words' ids, from the training clients.
        coverage: Share of the test clients' words that are in the vocabulary, or None.
    """

    vocabulary: Vocabulary
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
    )
    examples = next_word_examples(corpus, vocabulary, sequence_length=options.sequence_length)
    some = validation[: options.max_validation_clients or None]
    return NextWordData(
        corpus.name,
        examples.subset(train),
        _evaluated(examples.subset(some), options),
        _evaluated(examples.subset(test), options),
        vocabulary,
        vocabulary.coverage(corpus, test),
    )


def sample_stack_overflow(
    data: StackOverflow, options: NextWordRun, *, max_test_clients: int = 2_000
) -> NextWordData:
    """Prepares TFF's Stack Overflow: its own three parts, the evaluated ones a random sample."""

    def sample(part: ReadWhenDrawn, count: int) -> EvaluationSet:
        order = np.random.default_rng(options.seed).permutation(part.num_clients)
        return _evaluated(part.subset(order[: count or None]), options)

    return NextWordData(
        data.name,
        data.train,
        sample(data.validation, options.max_validation_clients),
        sample(data.test, max_test_clients),
        data.vocabulary,
    )


def _evaluated(dataset: ClientDataset, options: NextWordRun) -> EvaluationSet:
    parts = options.split_options()
    if parts["split"] == "shared":  # What is predicted must not be known.
        parts["split"] = "aggregated"
    return EvaluationSet(
        *split_support_query(dataset, batch_size=options.client_batch_size, **parts)
    )

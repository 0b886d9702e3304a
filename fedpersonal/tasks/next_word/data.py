"""Who trains on which sentences, and who is evaluated on which (Singhal et al., section 5.1.2)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.generated.corpus import generate_corpus
from fedpersonal.data.sentences import KEPT_SENTENCES, TextCorpus, read_text
from fedpersonal.data.sources import FILE, Sources
from fedpersonal.data.splits import check_num_clients, split_clients, split_support_query
from fedpersonal.data.stack_overflow import DATABASE, StackOverflow, StackOverflowClients
from fedpersonal.data.vocabulary import EOS, PAD, Vocabulary, build_vocabulary, next_word_examples
from fedpersonal.draws import Purpose, generator
from fedpersonal.options import option
from fedpersonal.tasks.options import TextOptions
from fedpersonal.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.data.clients import ClientDataset
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


STACK_OVERFLOW = "stack_overflow"
SOURCES = Sources(
    holding="sentences",
    datasets=("generated", STACK_OVERFLOW),
    default="generated",
    files={
        STACK_OVERFLOW: (DATABASE,),
        FILE: ("stack_exchange.jsonl.gz", "stack_exchange.jsonl", "stack_exchange.csv"),
    },
    folders=(STACK_OVERFLOW,),
    advice="download TFF's data to it by --dataset=stack_overflow",
)
_PAPER_SENTENCES, _OTHER_SENTENCES = 1024, 128


class SentenceOptions(TextOptions):
    """Where sentences come from and which of them are kept."""

    dataset: str = option(
        "auto",
        "Sentences. auto: --text_file if that is given, else what is in --data_dir (TFF's Stack "
        "Overflow, or stack_exchange.jsonl.gz), else a generated corpus. stack_overflow: TFF's "
        "own, downloaded (many gigabytes) where --data_dir does not have it yet.",
        choices=SOURCES.choices,
    )
    cache_dir: str = option("results/text_cache", "Keeps tokenised texts.", may_differ=True)
    min_sentences: int = option(2, "Users with fewer are left out.", at_least=2)
    max_sentences: int | None = option(
        None,
        f"Sentences of a user that are kept. [default: {_PAPER_SENTENCES} of Stack Overflow, else "
        f"{_OTHER_SENTENCES}]",
        at_least=2,
    )
    kept_sentences: str = option(
        "earliest",
        "Which sentences of a user are kept: the earliest, or the first ones as stored, as in the "
        "reference. Sorted by time either way.",
        choices=KEPT_SENTENCES,
    )
    max_validation_clients: int = option(500, "Validates on so many at most; 0: all.", at_least=0)


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
    def is_the_papers(self) -> bool:
        """Whether these are the data of the paper's figures."""
        return self.kind == STACK_OVERFLOW

    @property
    def max_sentences(self) -> int:
        """How many sentences of a user are kept."""
        usual = _PAPER_SENTENCES if self.is_the_papers else _OTHER_SENTENCES
        return self.options.max_sentences or usual

    @functools.cached_property
    def corpus(self) -> TextCorpus:
        """The sentences of a table, or generated ones."""
        options = self.options
        if self.kind == "generated":
            # One corpus for all seeds; what differs is its split.
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
        return STACK_OVERFLOW if self.is_the_papers else self.corpus.name

    def summary(self) -> str:
        """Returns a line that says what there is, and what was left out of a table."""
        if self.is_the_papers:
            return f"{STACK_OVERFLOW}: TFF's own federated data"
        return self.corpus.summary()

    def fingerprint(self) -> str:
        """Returns what tells these sentences from others; TFF's own are known by name."""
        return STACK_OVERFLOW if self.is_the_papers else self.corpus.fingerprint()

    def describe(self) -> dict[str, object]:
        """Returns what tells these sentences from others, and how many there are, if known."""
        return {
            **({"dataset": STACK_OVERFLOW} if self.is_the_papers else self.corpus.describe()),
            "max_sentences": self.max_sentences,
            "max_validation_clients": self.options.max_validation_clients or None,
        }

    def num_distinct_words(self, seeds: Iterable[int]) -> int | None:
        """Returns how many distinct words the training users have, the fewest of these splits.

        None stands for more than anyone asks for.
        """
        if self.is_the_papers:
            return None
        trainers = (split_clients(self.corpus.num_clients, seed=seed)[0] for seed in seeds)
        return min(int(np.unique(self.corpus.subset(train).words).size) for train in trainers)

"""Where the sentences of next word prediction come from, and which of them are kept."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from fedpersonal.data.generated.corpus import generate_corpus
from fedpersonal.data.sources import FILE, Sources
from fedpersonal.data.splits import split_clients
from fedpersonal.data.texts.corpus import KEPT_SENTENCES, TextCorpus
from fedpersonal.data.texts.corpus_files import read_text
from fedpersonal.data.texts.stack_overflow import DATABASE
from fedpersonal.options import option
from fedpersonal.tasks.options import TextOptions

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
            return generate_corpus(seed=0)
        assert self.path  # A table has one.
        return read_text(
            self.path,
            **options.columns("user", "text", "time"),
            min_sentences=options.min_sentences,
            max_sentences=self.max_sentences,
            kept_sentences=options.kept_sentences,
            cache_dir=options.cache_dir,
        )

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

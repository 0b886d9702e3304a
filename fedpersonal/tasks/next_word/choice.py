"""Which sentences a sweep is about, as something that can be handed to another process."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from fedpersonal.data.generated.corpus import generate_corpus
from fedpersonal.data.sources import FILE, Sources
from fedpersonal.data.splits import split_clients
from fedpersonal.data.texts.corpus import TextCorpus
from fedpersonal.data.texts.corpus_files import read_text
from fedpersonal.data.texts.stack_overflow import DATABASE, load_stack_overflow
from fedpersonal.tasks.next_word import data
from fedpersonal.tasks.next_word.experiment import NextWordOptions

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


@dataclasses.dataclass(frozen=True)
class TextChoice:
    """Where sentences come from and which of them are kept.

    Attributes:
        source: `generated`, `file` or `stack_overflow`, as of `SOURCES`.
        path: The table of a `file`; the folder of TFF's data of `stack_overflow`.
        user_column: Of the table.
        text_column: Of the table.
        time_column: Of the table; may be missing.
        min_sentences: Users of the table with fewer are left out.
        max_sentences: A user's first ones that are kept.
        max_validation_clients: Validates on so many at most, or None for all.
        cache_dir: Keeps tokenised tables.
    """

    source: str
    path: str | None = None
    user_column: str = "user"
    text_column: str = "text"
    time_column: str = "time"
    min_sentences: int = 32
    max_sentences: int = 1024
    max_validation_clients: int | None = 500
    cache_dir: str | None = None

    @property
    def is_the_papers(self) -> bool:
        """Whether this is the data of the paper's figures."""
        return self.source == STACK_OVERFLOW

    def load(self, options: NextWordOptions) -> data.NextWordData:
        """Loads and splits the sentences with the vocabulary of the options.

        Raises:
            UserError: If there are too few users or words, or the data cannot be read.
        """
        words = {"vocab_size": options.vocab_size, "num_oov_buckets": options.num_oov_buckets}
        split = {
            "batch_size": options.client_batch_size,
            "split": options.split,
            "seed": options.seed,
            "max_validation_clients": self.max_validation_clients,
        }
        if self.source == STACK_OVERFLOW:
            parts = load_stack_overflow(
                **words,
                sequence_length=options.sequence_length,
                max_sentences=self.max_sentences,
                cache_dir=self.path,
            )
            return data.sample_stack_overflow(parts, **split)
        return data.split_text(
            _load_corpus(self), **words, sequence_length=options.sequence_length, **split
        )

    def summary(self) -> str:
        """Returns a line that says what there is, and what was left out of a table."""
        if self.source == STACK_OVERFLOW:
            return f"{STACK_OVERFLOW}: TFF's own federated data"
        return _load_corpus(self).summary()

    def describe(self) -> dict[str, object]:
        """Returns what tells these sentences from others, and how many there are, if known."""
        kept = {
            "max_sentences": self.max_sentences,
            "max_validation_clients": self.max_validation_clients,
        }
        if self.source == STACK_OVERFLOW:
            return {"dataset": STACK_OVERFLOW, **kept}
        return {**_load_corpus(self).describe(), **kept}

    def num_distinct_words(self, seeds: Iterable[int]) -> int | None:
        """Returns how many distinct words the training users have, the fewest of these splits.

        None stands for more than anyone asks for.
        """
        if self.source == STACK_OVERFLOW:
            return None
        corpus = _load_corpus(self)
        trainers = (split_clients(corpus.num_clients, seed=seed)[0] for seed in seeds)
        return min(int(np.unique(corpus.subset(train).words).size) for train in trainers)


@functools.lru_cache(maxsize=1)
def _load_corpus(choice: TextChoice) -> TextCorpus:
    if choice.source == "generated":
        # One corpus for all seeds; what differs is its split.
        return generate_corpus(seed=0)
    return read_text(
        choice.path,
        user_column=choice.user_column,
        text_column=choice.text_column,
        time_column=choice.time_column,
        min_sentences=choice.min_sentences,
        max_sentences=choice.max_sentences,
        cache_dir=choice.cache_dir,
    )

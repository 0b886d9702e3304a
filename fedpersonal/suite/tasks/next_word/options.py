"""The options of the task of next words."""

from __future__ import annotations

from fedpersonal.data.sources import FILE, Sources
from fedpersonal.options import option
from fedpersonal.suite.readers.sentences import KEPT_SENTENCES
from fedpersonal.suite.readers.stack_overflow import DATABASE
from fedpersonal.suite.readers.vocabulary import KNOWN_WORDS
from fedpersonal.suite.tasks.options import RunOptions, TextOptions

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
PAPER_SENTENCES, OTHER_SENTENCES = 1024, 128


class SentenceOptions(TextOptions):
    """Where sentences come from and which of them are kept."""

    dataset: str = option(
        "auto",
        "Sentences. auto: --text_file if that is given, else what is in --data_dir (TFF's Stack "
        "Overflow, or stack_exchange.jsonl.gz), else a generated corpus. stack_overflow: TFF's "
        "data, downloaded (many gigabytes) if --data_dir does not have them yet.",
        choices=SOURCES.choices,
    )
    cache_dir: str = option(
        "results/text_cache", "The folder for tokenised texts.", may_differ=True
    )
    min_sentences: int = option(2, "Users with fewer sentences are left out.", at_least=2)
    max_sentences: int | None = option(
        None,
        f"Sentences kept for each user. [default: {PAPER_SENTENCES} of Stack Overflow, else "
        f"{OTHER_SENTENCES}]",
        at_least=2,
    )
    kept_sentences: str = option(
        "earliest",
        "The sentences kept for a user: the earliest, or the first ones as stored, as in the "
        "reference. Both are sorted by time.",
        choices=KEPT_SENTENCES,
    )
    max_validation_clients: int = option(
        500, "The maximal number of validation clients; 0: all.", at_least=0
    )


class NextWordOptions(SentenceOptions):
    """The sentences, and the LSTM that predicts their words, by default of the reference's size."""

    vocab_size: int = option(
        10_000, "Words in the vocabulary.", at_least=1, at_most=10**7, in_help=True
    )
    known_words: str = option(
        "most_frequent",
        "The words of the vocabulary: the most frequent, or those that most users write. TFF's "
        "Stack Overflow always has the latter.",
        choices=KNOWN_WORDS,
    )
    num_oov_buckets: int | None = option(
        None,
        "Hash buckets of words out of the vocabulary. [default: 500 if each client has local "
        "embeddings for them, else 1]",
        at_least=1,
        at_most=10**7,
    )
    sequence_length: int = option(20, "Tokens of a sentence.", at_least=1, at_most=10_000)
    padding_in_loss: bool = option(
        False,
        "The loss is a mean over all positions, with padding, as in the reference; else over "
        "tokens.",
    )
    embedding_dim: int = option(96, "Size of an embedding.", at_least=1, at_most=10_000)
    lstm_units: int = option(670, "Units of the LSTM.", at_least=1, at_most=10_000)
    projection_dim: int = option(96, "Size of the projection.", at_least=1, at_most=10_000)


class NextWordRun(NextWordOptions, RunOptions):
    """The options of a run of this task."""

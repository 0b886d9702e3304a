"""The flags of every binary that trains on texts: which ones, and how they are read."""

from __future__ import annotations

from absl import flags

FLAGS = flags.FLAGS

_STACK_OVERFLOW_SENTENCES = 1024
_OTHER_SENTENCES = 128


def define_table_flags() -> None:
    """Defines the flags that name a table of texts; they then belong to the calling module."""
    flags.disclaim_key_flags()
    flags.DEFINE_string("text_file", None, "An own table of texts, CSV or JSON lines.")
    flags.DEFINE_string("user_column", "user", "Its column of users.")
    flags.DEFINE_string("text_column", "text", "Its column of texts.")
    flags.DEFINE_string("time_column", "time", "Its column of times; may be missing.")


def define_sentence_flags(*, min_sentences: int = 2) -> None:
    """Defines the flags that say which sentences are kept; they belong to the calling module.

    Args:
        min_sentences: Default of that flag.
    """
    flags.disclaim_key_flags()
    flags.DEFINE_string("cache_dir", "results/text_cache", "Keeps tokenised texts.")
    flags.DEFINE_integer(
        "min_sentences", min_sentences, "Users with fewer are left out.", lower_bound=2
    )
    flags.DEFINE_integer(
        "max_sentences",
        None,
        f"A user's first ones that are kept. [default: {_STACK_OVERFLOW_SENTENCES} of Stack "
        f"Overflow, else {_OTHER_SENTENCES}]",
        lower_bound=2,
    )
    flags.DEFINE_integer(
        "max_validation_clients", 500, "Validates on so many at most; 0: all.", lower_bound=0
    )


def text_choice():
    """Returns the `TextChoice` that the flags, `--data_dir` among them, describe."""
    from fedpersonal.data.sources import find_source
    from fedpersonal.tasks.next_word.choice import SOURCES, STACK_OVERFLOW, TextChoice

    source, path = find_source(
        SOURCES, dataset=FLAGS.dataset, file=FLAGS.text_file, data_dir=FLAGS.data_dir
    )
    is_the_papers = source == STACK_OVERFLOW
    return TextChoice(
        source,
        path,
        user_column=FLAGS.user_column,
        text_column=FLAGS.text_column,
        time_column=FLAGS.time_column,
        min_sentences=FLAGS.min_sentences,
        max_sentences=FLAGS.max_sentences
        or (_STACK_OVERFLOW_SENTENCES if is_the_papers else _OTHER_SENTENCES),
        max_validation_clients=FLAGS.max_validation_clients or None,
        cache_dir=FLAGS.cache_dir,
    )

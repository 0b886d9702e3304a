"""The flags of every binary on utterances: which ones, and which base model."""

from __future__ import annotations

from absl import flags

FLAGS = flags.FLAGS


def define_selection_flags() -> None:
    """Defines the flags that every binary on utterances has; they belong to the caller."""
    flags.disclaim_key_flags()
    flags.DEFINE_string("context_column", "context", "The table's column of contexts.")
    flags.DEFINE_integer(
        "users_per_context", 0, "Most frequent users kept, of a text file; 0: all.", lower_bound=0
    )
    flags.DEFINE_integer(
        "min_utterances", 0, "Users with fewer are left out; 0: the paper's.", lower_bound=0
    )
    flags.DEFINE_integer(
        "min_context_utterances", 0, "The same of contexts; 0: the paper's.", lower_bound=0
    )
    flags.DEFINE_string(
        "base_model",
        None,
        "A GPT-2 in HuggingFace's format, a folder or a name such as distilgpt2. [default: a small "
        "one is pretrained on what users who do not take part have written]",
    )
    flags.DEFINE_string("base_model_dir", "results/base_models", "Keeps pretrained base models.")


def define_utterance_flags() -> None:
    """Defines the flags that say which utterances and base model; they belong to the caller."""
    flags.disclaim_key_flags()
    flags.DEFINE_enum(
        "dataset",
        "auto",
        ["auto", "generated", "tv_shows", "reddit"],
        "Utterances. auto: --text_file if that is given, else tv_shows.jsonl.gz in --data_dir, "
        "else generated dialogues.",
    )
    define_selection_flags()
    flags.DEFINE_enum(
        "split",
        "known",
        ["known", "withheld"],
        "Test on other utterances of the users who train, or on users who never took part.",
    )
    flags.DEFINE_integer("text_length", 32, "Tokens of an utterance.", lower_bound=4)
    flags.DEFINE_enum(
        "too_long", "cut", ["cut", "error"], "What becomes of utterances with more tokens."
    )


def utterance_choice(dataset: str):
    """Returns the `UtteranceChoice` that the flags, `--data_dir` among them, describe.

    Args:
        dataset: One of the choices of `--dataset`.
    """
    from fedpersonal.data.sources import find_source
    from fedpersonal.tasks.utterances.choice import SOURCES, UtteranceChoice

    source, path = find_source(
        SOURCES, dataset=dataset, file=FLAGS.text_file, data_dir=FLAGS.data_dir
    )
    return UtteranceChoice(
        source,
        path,
        user_column=FLAGS.user_column,
        text_column=FLAGS.text_column,
        context_column=FLAGS.context_column,
        time_column=FLAGS.time_column,
        users_per_context=FLAGS.users_per_context or None,
        min_utterances=FLAGS.min_utterances or None,
        min_context_utterances=FLAGS.min_context_utterances or None,
    )

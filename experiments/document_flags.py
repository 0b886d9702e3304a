"""The flags of every binary that trains on labelled texts: which ones, and how they are read."""

from __future__ import annotations

from absl import flags

FLAGS = flags.FLAGS


def define_document_flags() -> None:
    """Defines the flags; they then belong to the calling module."""
    flags.disclaim_key_flags()
    flags.DEFINE_enum(
        "dataset",
        "auto",
        ["auto", "generated", "generated_clicks", "reddit_tfds"],
        "Texts. auto: --text_file if that is given, else reddit_comments.jsonl.gz in --data_dir, "
        "else generated comments. reddit_tfds: TensorFlow Datasets' reddit, downloaded where "
        "--data_dir does not have it yet.",
    )
    flags.DEFINE_string("text_file", None, "An own table of texts, CSV or JSON lines.")
    flags.DEFINE_string("user_column", "user", "Its column of users.")
    flags.DEFINE_string("text_column", "text", "Its column of texts.")
    flags.DEFINE_string("label_column", "context", "Its column of labels, such as subreddits.")
    flags.DEFINE_string("time_column", "time", "Its column of times; may be missing.")
    flags.DEFINE_integer(
        "num_labels", 100, "The most frequent labels, kept; 0: labels are 0 and 1.", lower_bound=0
    )
    flags.DEFINE_integer("min_comments", 15, "Users with fewer are left out.", lower_bound=1)
    flags.DEFINE_integer("max_comments", 0, "Users with more are left out; 0: none.", lower_bound=0)
    flags.DEFINE_float(
        "withheld_users", 0.1, "Share of the users who never take part.", lower_bound=0.0
    )
    flags.DEFINE_integer("text_length", 100, "Characters of a text.", lower_bound=1)


def document_choice():
    """Returns the `DocumentChoice` that the flags, `--data_dir` among them, describe."""
    from fedpersonal.tasks.document_choice import DocumentChoice, find_documents

    source, path = find_documents(
        dataset=FLAGS.dataset, text_file=FLAGS.text_file, data_dir=FLAGS.data_dir
    )
    return DocumentChoice(
        source,
        path,
        user_column=FLAGS.user_column,
        text_column=FLAGS.text_column,
        label_column=FLAGS.label_column,
        time_column=FLAGS.time_column,
        num_labels=FLAGS.num_labels,
        min_texts=FLAGS.min_comments,
        max_texts=FLAGS.max_comments or None,
        withheld_users=FLAGS.withheld_users,
        text_length=FLAGS.text_length,
    )

"""The flags of every binary that trains on labelled texts, beside those of a table of texts."""

from __future__ import annotations

from absl import flags

FLAGS = flags.FLAGS


def define_document_flags() -> None:
    """Defines the flags that say which labelled texts are kept; they belong to the caller."""
    flags.disclaim_key_flags()
    flags.DEFINE_string(
        "label_column", "context", "The table's column of labels, such as subreddits."
    )
    flags.DEFINE_integer(
        "num_labels", 100, "The most frequent labels, kept; 0: labels are 0 and 1.", lower_bound=0
    )
    flags.DEFINE_integer("min_comments", 15, "Users with fewer are left out.", lower_bound=1)
    flags.DEFINE_integer("max_comments", 0, "Users with more are left out; 0: none.", lower_bound=0)
    flags.DEFINE_float(
        "withheld_users", 0.1, "Share of the users who never take part.", lower_bound=0.0
    )
    flags.DEFINE_integer("text_length", 80, "Characters of a text.", lower_bound=1)


def document_choice():
    """Returns the `DocumentChoice` that the flags, `--data_dir` among them, describe."""
    from fedpersonal.data.sources import find_source
    from fedpersonal.tasks.documents.choice import SOURCES, DocumentChoice

    source, path = find_source(
        SOURCES, dataset=FLAGS.dataset, file=FLAGS.text_file, data_dir=FLAGS.data_dir
    )
    return DocumentChoice(
        source,
        path,
        user_column=FLAGS.user_column,
        text_column=FLAGS.text_column,
        label_column=FLAGS.label_column,
        time_column=FLAGS.time_column,
        num_labels=FLAGS.num_labels,
        min_comments=FLAGS.min_comments,
        max_comments=FLAGS.max_comments or None,
        withheld_users=FLAGS.withheld_users,
        text_length=FLAGS.text_length,
    )

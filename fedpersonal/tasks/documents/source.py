"""Where labelled texts come from, and which of them are kept."""

from __future__ import annotations

from fedpersonal.data.generated.documents import generate_clicks, generate_subreddits
from fedpersonal.data.sources import FILE, Sources, find_source
from fedpersonal.data.texts.documents import read_documents
from fedpersonal.data.texts.labelled import LabelledTexts
from fedpersonal.options import option
from fedpersonal.tasks.options import TextOptions

SOURCES = Sources(
    holding="labels",
    datasets=("generated", "generated_clicks", "reddit_tfds"),
    default="generated",
    files={FILE: ("reddit_comments.jsonl.gz", "reddit_comments.jsonl", "reddit_comments.csv")},
    folders=("reddit_tfds",),
    advice="ask TensorFlow Datasets by --dataset=reddit_tfds",
)


class LabelledTextOptions(TextOptions):
    """Where labelled texts come from and which of them are kept."""

    dataset: str = option(
        "auto",
        "Texts. auto: --text_file if that is given, else reddit_comments.jsonl.gz in --data_dir, "
        "else generated comments. reddit_tfds: TensorFlow Datasets' reddit, downloaded where "
        "--data_dir does not have it yet.",
        choices=SOURCES.choices,
    )
    label_column: str = option("context", "The table's column of labels, such as subreddits.")
    num_labels: int = option(
        100, "The most frequent labels, kept; 0: labels are 0 and 1.", at_least=0, at_most=10**6
    )
    min_texts: int = option(15, "Users with fewer are left out.", at_least=1)
    max_texts: int = option(0, "Users with more are left out; 0: none.", at_least=0)


def read_labelled_texts(options: LabelledTextOptions) -> LabelledTexts:
    """Reads the texts that options name.

    Raises:
        UserError: If they cannot be read, the folder of data has no table of comments, or two
            sources are named.
    """
    dataset, path = find_source(
        SOURCES, dataset=options.dataset, file=options.text_file, data_dir=options.data_dir
    )
    most = options.max_texts or None
    if dataset == "generated":
        # One set of texts for all seeds; what differs is its split.
        return generate_subreddits(seed=0)
    if dataset == "generated_clicks":
        return generate_clicks(seed=0)
    if dataset == "reddit_tfds":
        from fedpersonal.data.texts.reddit import load_reddit

        return load_reddit(
            path, num_labels=options.num_labels, min_texts=options.min_texts, max_texts=most
        )
    assert path  # A table has one.
    return read_documents(
        path,
        user_column=options.user_column,
        text_column=options.text_column,
        label_column=options.label_column,
        time_column=options.time_column,
        num_labels=options.num_labels or None,
        min_texts=options.min_texts,
        max_texts=most,
    )

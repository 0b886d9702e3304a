"""Which labelled texts a program is about, as something that can be handed to another process."""

from __future__ import annotations

import dataclasses
import functools
import pathlib

from fedpersonal.data.document_files import read_documents
from fedpersonal.data.documents import Documents
from fedpersonal.data.generated_documents import generate_clicks, generate_subreddits
from fedpersonal.errors import UserError
from fedpersonal.tasks.documents.data import DocumentData, split_documents

REDDIT_FILES = ("reddit_comments.jsonl.gz", "reddit_comments.jsonl", "reddit_comments.csv")
DATASETS = ("auto", "generated", "generated_clicks", "reddit_tfds")


@dataclasses.dataclass(frozen=True)
class DocumentChoice:
    """Where labelled texts come from and which of them are kept.

    Attributes:
        source: `generated`, `generated_clicks`, `reddit_tfds` or `file`, as of `find_documents`.
        path: The table of a `file`; the folder of TensorFlow Datasets of `reddit_tfds`, or None.
        user_column: Of the table.
        text_column: Of the table.
        label_column: Of the table: classes, or 0 and 1 where `num_labels` is 0.
        time_column: Of the table; may be missing.
        num_labels: The most frequent labels that are kept, or 0 for a label of 0 or 1.
        min_comments: Users with fewer are left out.
        max_comments: Users with more are left out; None for no bound.
        withheld_users: Share of the users who never take part.
        text_length: Characters of a text that are read.
    """

    source: str
    path: str | None = None
    user_column: str = "user"
    text_column: str = "text"
    label_column: str = "context"
    time_column: str = "time"
    num_labels: int = 100
    min_comments: int = 15
    max_comments: int | None = None
    withheld_users: float = 0.1
    text_length: int = 80

    def load(self, *, seed: int) -> DocumentData:
        """Loads and splits the texts.

        Args:
            seed: Seed of the splits.

        Raises:
            UserError: If there are too few users or labels, or the data cannot be read.
        """
        return split_documents(
            _load(self),
            text_length=self.text_length,
            withheld_users=self.withheld_users,
            seed=seed,
        )

    def summary(self) -> str:
        """Returns a line that says what there is, and what was left out."""
        documents = _load(self)
        left_out = "".join(f"; {count:,} {what}" for what, count in documents.report.items())
        return (
            f"{documents.name}: {documents.num_texts:,} texts of {documents.num_clients:,} users, "
            f"{documents.num_labels} labels{left_out}"
        )

    def describe(self) -> dict[str, object]:
        """Returns what tells these texts from others, and how many there are."""
        documents = _load(self)
        return {
            "dataset": documents.name,
            "num_users": documents.num_clients,
            "num_texts": documents.num_texts,
            "num_labels": documents.num_labels,
            "withheld_users": self.withheld_users,
            "text_length": self.text_length,
        }


def find_documents(
    *, dataset: str, text_file: str | None, data_dir: str | None
) -> tuple[str, str | None]:
    """Settles what `auto` means.

    Args:
        dataset: One of `DATASETS`.
        text_file: A table of labelled texts, or None.
        data_dir: A folder of data, or None.

    Returns:
        A `DocumentChoice`'s source and path.

    Raises:
        UserError: If the folder has no table of comments, or two sources are named.
    """
    if dataset not in DATASETS:
        raise UserError(f"--dataset={dataset} has no labels; these have: {', '.join(DATASETS)}.")
    if text_file:
        if dataset != "auto":
            raise UserError(f"--text_file and --dataset={dataset} exclude each other.")
        return "file", text_file
    if dataset != "auto":
        return dataset, data_dir
    if not data_dir:
        return "generated", None
    for name in REDDIT_FILES:
        path = pathlib.Path(data_dir) / name
        if path.exists():
            return "file", str(path)
    raise UserError(
        f"{data_dir} has no {REDDIT_FILES[0]}; name an own table by --text_file, or ask TensorFlow "
        "Datasets by --dataset=reddit_tfds."
    )


@functools.lru_cache(maxsize=1)
def _load(choice: DocumentChoice) -> Documents:
    if choice.source == "generated":
        # One set of texts for all seeds; what differs is its split.
        return generate_subreddits(seed=0)
    if choice.source == "generated_clicks":
        return generate_clicks(seed=0)
    if choice.source == "reddit_tfds":
        from fedpersonal.data.reddit_tfds import load_reddit

        return load_reddit(
            choice.path,
            num_labels=choice.num_labels,
            min_comments=choice.min_comments,
            max_comments=choice.max_comments,
            download=True,
        )
    return read_documents(
        choice.path,
        user_column=choice.user_column,
        text_column=choice.text_column,
        label_column=choice.label_column,
        time_column=choice.time_column,
        num_labels=choice.num_labels or None,
        min_comments=choice.min_comments,
        max_comments=choice.max_comments,
    )

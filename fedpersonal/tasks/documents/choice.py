"""Which labelled texts a program is about, as something that can be handed to another process."""

from __future__ import annotations

import dataclasses
import functools

from fedpersonal.data.generated.documents import generate_clicks, generate_subreddits
from fedpersonal.data.sources import FILE, Sources
from fedpersonal.data.texts.documents import read_documents
from fedpersonal.data.texts.labelled import LabelledTexts
from fedpersonal.tasks.documents.data import DocumentData, split_documents

SOURCES = Sources(
    holding="labels",
    datasets=("generated", "generated_clicks", "reddit_tfds"),
    default="generated",
    files={FILE: ("reddit_comments.jsonl.gz", "reddit_comments.jsonl", "reddit_comments.csv")},
    folders=("reddit_tfds",),
    advice="ask TensorFlow Datasets by --dataset=reddit_tfds",
)


@dataclasses.dataclass(frozen=True)
class DocumentChoice:
    """Where labelled texts come from and which of them are kept.

    Attributes:
        source: `generated`, `generated_clicks`, `reddit_tfds` or `file`, as of
            `SOURCES`.
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
        return _load(self).summary()

    def describe(self) -> dict[str, object]:
        """Returns what tells these texts from others, and how many there are."""
        kept = {"withheld_users": self.withheld_users, "text_length": self.text_length}
        return {**_load(self).describe(), **kept}


@functools.lru_cache(maxsize=1)
def _load(choice: DocumentChoice) -> LabelledTexts:
    if choice.source == "generated":
        # One set of texts for all seeds; what differs is its split.
        return generate_subreddits(seed=0)
    if choice.source == "generated_clicks":
        return generate_clicks(seed=0)
    if choice.source == "reddit_tfds":
        from fedpersonal.data.texts.reddit import load_reddit

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

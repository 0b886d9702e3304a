"""The options and the data sets of the task of labelled texts."""

from __future__ import annotations

from fedpersonal.data.sources import FILE, Sources
from fedpersonal.errors import UserError
from fedpersonal.methods.method import KeepingOptions
from fedpersonal.options import option
from fedpersonal.suite.readers.documents import (
    FILMS_1M_FILES,
)
from fedpersonal.suite.tasks.options import RunOptions, TextOptions

SOURCES = Sources(
    holding="labels",
    datasets=("generated", "movielens_100k", "movielens_1m", "reddit_tfds"),
    default="generated",
    files={
        FILE: ("reddit_comments.jsonl.gz", "reddit_comments.jsonl", "reddit_comments.csv"),
        # `load_films_1m` finds its files in any folder.
        "movielens_1m": (FILMS_1M_FILES[0], ""),
    },
    folders=("reddit_tfds",),
    only_by_name=("movielens_1m",),
    advice="use TensorFlow Datasets by --dataset=reddit_tfds",
    public=("generated", "movielens_100k"),
)


class DocumentOptions(TextOptions):
    """The labelled texts, and their classifier."""

    dataset: str = option(
        "auto",
        "Texts. auto: --text_file if that is given, else reddit_comments.jsonl.gz in --data_dir, "
        "else generated comments. movielens_100k, movielens_1m: films that users like. "
        "reddit_tfds: TensorFlow Datasets' reddit, downloaded unless --data_dir has it.",
        choices=SOURCES.choices,
    )
    label_column: str = option("context", "The table's column of labels, such as subreddits.")
    num_labels: int = option(
        100,
        "The number of most frequent labels to keep; 0: labels are 0 and 1, as those of films "
        "always are.",
        at_least=0,
        at_most=10**6,
    )
    min_texts: int = option(15, "Users with fewer texts are left out.", at_least=1)
    max_texts: int = option(0, "Users with more texts are left out; 0: none.", at_least=0)
    unseen_users: float = option(
        0.1, "Share of unseen users, who never train.", at_least=0, at_most=0.9
    )
    text_encoder: str = option(
        "hashed_words",
        "The encoder of a text as a vector. hashed_words: the sum of the embeddings of its words "
        "and pairs of words, divided by the root of their number. chars: two LSTMs over its first "
        "characters.",
        choices=("hashed_words", "chars"),
        in_help=True,
    )
    text_length: int = option(80, "chars: characters of a text.", at_least=1, at_most=10**6)
    word_buckets: int = option(
        2**15, "hashed_words: rows of the table of words.", at_least=1, at_most=10**8
    )
    word_dim: int = option(
        32,
        "hashed_words: size of a word embedding; 0: a number for each label, which makes the model "
        "linear. That needs --hidden_units=0 --user_dim=0.",
        at_least=0,
        at_most=10_000,
    )
    user_dim: int = option(
        32,
        "Size of a user embedding; 0: a number for each label, added to the model's output.",
        at_least=0,
        at_most=10_000,
    )
    character_dim: int = option(
        32, "chars: size of a character embedding.", at_least=1, at_most=10_000
    )
    lstm_units: int = option(
        32, "chars: units of each of the two LSTMs.", at_least=1, at_most=10_000
    )
    hidden_units: tuple[int, ...] = option(
        (64,), "Units of a hidden layer; 0: no such layer.", at_least=0, at_most=10_000
    )

    @property
    def is_linear(self) -> bool:
        """Whether the model has only a number for each label and word, or label and user."""
        return self.text_encoder == "hashed_words" and not self.word_dim

    def check(self) -> None:
        """Raises a `UserError` if options contradict each other."""
        super().check()
        if self.is_linear and (any(self.hidden_units) or self.user_dim):
            raise UserError(
                f"--word_dim=0 needs --hidden_units=0 --user_dim=0, got --hidden_units="
                f"{','.join(map(str, self.hidden_units))} --user_dim={self.user_dim}"
            )


class DocumentRun(DocumentOptions, KeepingOptions, RunOptions):
    """The options of a run of this task."""

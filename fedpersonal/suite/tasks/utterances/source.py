"""Sources of utterances, and filters of users and contexts."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.data.formats import Column, TableFile
from fedpersonal.data.rows import read_rows
from fedpersonal.data.sources import Sources, fingerprint
from fedpersonal.data.tables import read_table
from fedpersonal.errors import UserError, join_words
from fedpersonal.options import option
from fedpersonal.suite.readers.generated.dialogues import GeneratedDialogues, generate_dialogues
from fedpersonal.suite.readers.utterances import (
    TV_SHOWS,
    TV_SHOWS_OTHER_NAMES,
    Utterances,
    read_other_texts,
    read_utterances,
)
from fedpersonal.suite.tasks.options import RunOptions, TextOptions

SOURCES = Sources(
    holding="utterances in contexts",
    datasets=("generated", "tv_shows", "reddit"),
    default="generated",
    files={
        "tv_shows": ("tv_shows.jsonl.gz", "tv_shows.jsonl", "tv_shows.csv"),
        "reddit": ("reddit_comments.jsonl.gz", "reddit_comments.jsonl", "reddit_comments.csv"),
    },
    only_by_name=("reddit",),
    tables=("file", "tv_shows", "reddit"),
)
_MIN_TOKENS = 3

# Appendix C: the minimal numbers of utterances of a user, and of a context.
_REDDIT_MINIMA = (50, 150)


class DialogueOptions(TextOptions):
    """Where utterances are, and the filters of users and contexts.

    0 means the paper's filter of the data set: the users of `TV_SHOWS` for `tv_shows`; users with
    50 utterances and contexts with 150 for `reddit`; all users and contexts for a file. The filters
    do not apply to generated dialogues.
    """

    dataset: str = option(
        "auto",
        "Utterances. auto: --text_file if that is given, else tv_shows.jsonl.gz in --data_dir, "
        "else generated dialogues.",
        choices=SOURCES.choices,
    )
    context_column: str = option("context", "The table's column of contexts.")
    users_per_context: int = option(
        0,
        "The number of most frequent users to keep in each context; 0: the paper's filter.",
        at_least=0,
    )
    min_utterances: int = option(
        0, "Users with fewer utterances are left out; 0: the paper's filter.", at_least=0
    )
    min_context_utterances: int = option(
        0, "Contexts with fewer utterances are left out; 0: the paper's filter.", at_least=0
    )
    user_vectors: str | None = option(
        None,
        "A CSV table with a vector for each user, learnt by another model: --user_column, and a "
        "column for each number.",
    )
    missing_vectors: str = option(
        "refuse",
        "Users without a vector. refuse: an error. zeros: a vector of zeros.",
        choices=("refuse", "zeros"),
    )

    def check(self) -> None:
        """Raises a `UserError` if an option would have no effect."""
        super().check()
        if self.user_vectors is None:
            self.refuse_idle("missing_vectors", where="without --user_vectors")


@dataclasses.dataclass(frozen=True)
class Dialogues:
    """Utterances that options name; they are read when they are first needed.

    Attributes:
        kind: `tv_shows`, `reddit`, `file` or `generated`.
        path: The table, or None for generated dialogues.
        options: The filters of users and contexts.
    """

    kind: str
    path: str | None
    options: DialogueOptions

    @functools.cached_property
    def utterances(self) -> Utterances:
        """The utterances after filters."""
        if self.path is None:
            return self.options.choose_users(_generated().named)
        columns = {**self._columns, **self.options.columns("time")}
        return self.options.choose_users(read_utterances(self.table, **columns, **self._filter))

    @property
    def table(self) -> TableFile:
        """The table of data that are not generated."""
        assert self.path
        return self.options.table(self.path)

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.utterances.name

    def other_texts(self) -> np.ndarray:
        """Returns the sentences of all users who do not take part, str objects.

        A model that is pretrained on them has seen no text of the users who take part.
        """
        if self.path is None:
            return _generated().others.texts
        users = self.utterances.client_ids.tolist()
        return read_other_texts(self.table, users, **self._columns, min_tokens=_MIN_TOKENS)

    @functools.cached_property
    def vectors(self) -> np.ndarray | None:
        """Users' vectors, float32 (users, numbers), in the order of users; None without a table.

        Raises:
            UserError: If the table cannot be used, or lacks users and options refuse that.
        """
        options, users = self.options, self.utterances.client_ids
        if options.user_vectors is None:
            return None
        table_users, vectors = _read_vectors(
            TableFile.from_path(options.user_vectors, encoding=options.encoding, has_flags=False),
            options.user_column,
        )
        places = table_users.get_indexer(users)
        lacking = users[places < 0]
        has_any = lacking.size < users.size
        if lacking.size and not (has_any and options.missing_vectors == "zeros"):
            way_out = "; --missing_vectors=zeros gives them zeros" if has_any else ""
            raise UserError(
                f"{options.user_vectors} has no vector of {lacking.size} of {users.size} users: "
                f"{join_words(lacking.tolist())}{way_out}"
            )
        return np.where(places[:, np.newaxis] < 0, np.float32(0), vectors[places])

    def summary(self) -> str:
        """Returns a line on the size of the data, and on rows that were left out."""
        return self.utterances.summary()

    def fingerprint(self) -> str:
        """Returns a hash of the utterances and the users' vectors."""
        digest = self.utterances.fingerprint()
        if self.vectors is None:
            return digest
        return fingerprint({"utterances": np.array([digest], object), "vectors": self.vectors})

    def describe(self) -> dict[str, object]:
        """Returns the entries that distinguish these utterances from others, and their sizes."""
        options, about = self.options, self.utterances.describe()
        if options.num_users is not None or options.users_file is not None:
            # A cached base model that was pretrained on these users must not be reused.
            about["users"] = fingerprint({"users": self.utterances.client_ids})
        return {**about, **(self._filter if self.path else {}), **options.changed()}

    @property
    def _columns(self) -> dict[str, Any]:
        other_names = TV_SHOWS_OTHER_NAMES if self.kind == "tv_shows" else None
        return {**self.options.columns("user", "text", "context"), "other_names": other_names}

    @property
    def _filter(self) -> dict[str, Any]:
        options = self.options
        papers = dict(TV_SHOWS) if self.kind == "tv_shows" else None
        least, least_of_context = _REDDIT_MINIMA if self.kind == "reddit" else (1, 1)
        return {
            "users_per_context": options.users_per_context or papers,
            "min_utterances": options.min_utterances or least,
            "min_context_utterances": options.min_context_utterances or least_of_context,
            "min_tokens": _MIN_TOKENS,
        }


def _read_vectors(file: TableFile, user_column: str) -> tuple[pd.Index, np.ndarray]:
    """Returns the users of a table, and the numbers of its other columns, sorted by name."""
    users = Column(user_column, option="user_column")
    names: set[str] = set()
    next(read_rows(file, [users], names), None)  # A .jsonl file has no header.
    numbers = sorted(names - {user_column})
    if not numbers:
        raise UserError(
            f"{file.path}: there is no column besides {user_column!r}; give a .csv or .tsv file "
            "with a column for each number of a vector"
        )
    columns = [users, *(Column(name, "real") for name in numbers)]
    table = read_table(file, columns, bad_rows="refuse")
    index = pd.Index(table.columns[user_column].astype(object))
    table.refuse(user_column, index.duplicated(), "has two vectors")
    return index, np.stack([np.asarray(table.columns[name]) for name in numbers], axis=1)


@functools.lru_cache(maxsize=1)
def _generated() -> GeneratedDialogues:
    # One set of sentences for all seeds; seeds differ in the split.
    return generate_dialogues(seed=0)


class UtteranceOptions(DialogueOptions):
    """The utterances, the base model, and the initial values of clients."""

    evaluate_on: str = option(
        "seen",
        "Test on other utterances of seen users, or on unseen users, who never train.",
        choices=("seen", "unseen"),
        in_help=True,
    )
    text_length: int = option(32, "Tokens of an utterance.", at_least=4, at_most=10**6)
    too_long: str = option(
        "cut",
        "Utterances with more tokens are cut, or an error.",
        choices=("cut", "error"),
    )
    base_model: str | None = option(
        None,
        "A GPT-2 in HuggingFace's format, a folder or a name such as distilgpt2. [default: a small "
        "model, pretrained on texts of users who do not take part]",
    )
    base_model_revision: str | None = option(
        None, "The commit, tag or branch of a base model on the hub. [default: the newest]"
    )
    base_model_adapted: bool = option(
        False,
        "Train the pretrained base further, only on texts of users of the same data who do not "
        "take part.",
    )
    base_model_dir: str = option(
        "results/base_models", "The folder for pretrained base models.", may_differ=True
    )
    unseen_start: str | None = option(
        None,
        "Initial local variables of unseen users: the noisy mean of those that seen users keep, "
        "the mean without noise, or fresh ones. [default: noisy_mean with embeddings, mean with "
        "larger parts]",
        choices=("noisy_mean", "mean", "fresh"),
    )
    noise_multiplier: float = option(
        0.1, "Noise of the noisy mean, as a multiple of --clip_norm.", at_least=0
    )
    clip_norm: float = option(
        1.0, "Bound on one user's contribution to the noisy mean.", at_least=1e-9
    )
    history_length: int = option(
        96, "Tokens that the prefix generator reads.", at_least=1, at_most=10**6
    )
    prefix_length: int = option(
        1, "Vectors of FedPerC's embeddings and of other prefixes.", at_least=1, at_most=1000
    )
    lora_rank: int = option(8, "The rank of LoRA's factors.", at_least=1, at_most=1000)
    lora_matrices: str = option(
        "qkv",
        "The matrices of a block to which LoRA is added. qkv: the matrix of queries, keys and "
        "values. all: all four matrices.",
        choices=("qkv", "all"),
    )


class UtteranceRun(UtteranceOptions, RunOptions):
    """The options of a run of this task."""

"""Where utterances come from, and which of them are kept."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.data.formats import Column, TableFile
from fedpersonal.data.generated.dialogues import GeneratedDialogues, generate_dialogues
from fedpersonal.data.rows import read_rows
from fedpersonal.data.sources import Sources, fingerprint
from fedpersonal.data.tables import read_table
from fedpersonal.data.utterances import (
    TV_SHOWS,
    TV_SHOWS_OTHER_NAMES,
    Utterances,
    read_other_texts,
    read_utterances,
)
from fedpersonal.errors import UserError, listed
from fedpersonal.options import option
from fedpersonal.tasks.options import RunOptions, TextOptions

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

# Appendix C: users with fewer utterances, and contexts with fewer, are left out.
_REDDIT_MINIMA = (50, 150)


class DialogueOptions(TextOptions):
    """Where utterances come from and which of them are kept.

    What 0 stands for is the paper's filter of the data set: of `tv_shows` the users of `TV_SHOWS`,
    of `reddit` users with 50 utterances and contexts with 150, of a file all users and contexts.
    The filter does not apply to generated dialogues.
    """

    dataset: str = option(
        "auto",
        "Utterances. auto: --text_file if that is given, else tv_shows.jsonl.gz in --data_dir, "
        "else generated dialogues.",
        choices=SOURCES.choices,
    )
    context_column: str = option("context", "The table's column of contexts.")
    users_per_context: int = option(
        0, "Most frequent users kept of each context; 0: the paper's.", at_least=0
    )
    min_utterances: int = option(0, "Users with fewer are left out; 0: the paper's.", at_least=0)
    min_context_utterances: int = option(0, "The same of contexts; 0: the paper's.", at_least=0)
    user_vectors: str | None = option(
        None,
        "A table, CSV, of a vector for each user, learnt elsewhere: --user_column, and a column "
        "for each number.",
    )
    missing_vectors: str = option(
        "refuse", "Users without a vector: refused, or zeros.", choices=("refuse", "zeros")
    )

    def check(self) -> None:
        """Raises a `UserError` where an option would have no effect."""
        super().check()
        if self.user_vectors is None:
            self.refuse_idle("missing_vectors", where="without --user_vectors")


@dataclasses.dataclass(frozen=True)
class Dialogues:
    """Utterances that options name; they are read when they are first needed.

    Attributes:
        kind: `tv_shows`, `reddit`, `file` or `generated`.
        path: The table, or None of generated ones.
        options: Which of them are kept.
    """

    kind: str
    path: str | None
    options: DialogueOptions

    @functools.cached_property
    def utterances(self) -> Utterances:
        """The utterances that are kept."""
        if self.path is None:
            return self.options.choose_users(_generated().named)
        columns = {**self._columns, **self.options.columns("time")}
        return self.options.choose_users(read_utterances(self.table, **columns, **self._filter))

    @property
    def table(self) -> TableFile:
        """The table, of data that are not generated."""
        assert self.path
        return self.options.table(self.path)

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.utterances.name

    def other_texts(self) -> np.ndarray:
        """Returns the sentences of all users who are not among the chosen ones, str objects.

        A model that is trained on them before has seen nothing of those who take part.
        """
        if self.path is None:
            return _generated().others.texts
        users = self.utterances.client_ids.tolist()
        return read_other_texts(self.table, users, **self._columns, min_tokens=_MIN_TOKENS)

    @functools.cached_property
    def vectors(self) -> np.ndarray | None:
        """Users' vectors, float32 (users, numbers), in their order; None if none are named.

        Raises:
            UserError: If the table cannot be used, or lacks users and these are refused.
        """
        options, users = self.options, self.utterances.client_ids
        if options.user_vectors is None:
            return None
        known, vectors = _read_vectors(
            TableFile.of(options.user_vectors, encoding=options.encoding, has_flags=False),
            options.user_column,
        )
        places = known.get_indexer(users)
        lacking = users[places < 0]
        has_some = lacking.size < users.size
        if lacking.size and not (has_some and options.missing_vectors == "zeros"):
            way_out = "; --missing_vectors=zeros gives them zeros" if has_some else ""
            raise UserError(
                f"{options.user_vectors} has no vector of {lacking.size} of {users.size} users: "
                f"{listed(lacking.tolist())}{way_out}"
            )
        return np.where(places[:, np.newaxis] < 0, np.float32(0), vectors[places])

    def summary(self) -> str:
        """Returns a line that says what there is, and what was left out."""
        return self.utterances.summary()

    def fingerprint(self) -> str:
        """Returns what tells these utterances from others."""
        known = self.utterances.fingerprint()
        if self.vectors is None:
            return known
        return fingerprint({"utterances": np.array([known], object), "vectors": self.vectors})

    def describe(self) -> dict[str, object]:
        """Returns what tells these utterances from others, and how many there are."""
        options, about = self.options, self.utterances.describe()
        if options.num_users is not None or options.users_file is not None:
            # A base model that others are to have trained must not have seen these.
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
    """Returns the users of a table, and the numbers of its other columns, by their names' order."""
    users = Column(user_column, option="user_column")
    names: set[str] = set()
    next(read_rows(file, [users], names), None)  # Of .jsonl there is no header.
    numbers = sorted(names - {user_column})
    if not numbers:
        raise UserError(
            f"{file.path}: there is no column beside {user_column!r}; give a .csv or .tsv file with"
            " a column for each number of a vector"
        )
    wanted = [users, *(Column(name, "real") for name in numbers)]
    table = read_table(file, wanted, bad_rows="refuse")
    known = pd.Index(table.columns[user_column].astype(object))
    table.refuse(user_column, known.duplicated(), "has two vectors")
    return known, np.stack([np.asarray(table.columns[name]) for name in numbers], axis=1)


@functools.lru_cache(maxsize=1)
def _generated() -> GeneratedDialogues:
    # One set of sentences for all seeds; what differs is its split.
    return generate_dialogues(seed=0)


class UtteranceOptions(DialogueOptions):
    """The utterances, the base model, and how clients start."""

    evaluate_on: str = option(
        "seen",
        "Test on other utterances of the users who train, or on users who never took part.",
        choices=("seen", "unseen"),
        in_help=True,
    )
    text_length: int = option(32, "Tokens of an utterance.", at_least=4, at_most=10**6)
    too_long: str = option(
        "cut", "What becomes of utterances with more tokens.", choices=("cut", "error")
    )
    base_model: str | None = option(
        None,
        "A GPT-2 in HuggingFace's format, a folder or a name such as distilgpt2. [default: a small "
        "one is pretrained on what users who do not take part have written]",
    )
    base_model_revision: str | None = option(
        None, "The commit, tag or branch of a base model on the hub. [default: the newest]"
    )
    base_model_adapted: bool = option(
        False,
        "Train the pretrained base further on what users who do not take part have written in the "
        "same data, and on nothing else.",
    )
    base_model_dir: str = option(
        "results/base_models", "Keeps pretrained base models.", may_differ=True
    )
    unseen_start: str | None = option(
        None,
        "Where unseen users start: the noisy mean of what the others keep, the mean itself, or as "
        "everybody. [default: noisy_mean with embeddings, mean with larger parts]",
        choices=("noisy_mean", "mean", "fresh"),
    )
    noise_multiplier: float = option(0.1, "Noise of that mean, by --clip_norm.", at_least=0)
    clip_norm: float = option(1.0, "Bound on what one user adds to it.", at_least=1e-9)
    history_length: int = option(96, "Tokens that a generator reads.", at_least=1, at_most=10**6)
    prefix_length: int = option(
        1, "Vectors of FedPerC's embeddings and of other prefixes.", at_least=1, at_most=1000
    )
    lora_rank: int = option(8, "The rank of LoRA's factors.", at_least=1, at_most=1000)
    lora_matrices: str = option(
        "qkv",
        "The matrices of a block that LoRA adds to: the one that makes queries, keys and values, "
        "or all four.",
        choices=("qkv", "all"),
    )


class UtteranceRun(UtteranceOptions, RunOptions):
    """These options, and those of any run."""

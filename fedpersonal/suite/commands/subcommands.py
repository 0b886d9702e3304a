"""The subcommands of `fedpersonal`, their help texts, and the tasks that they run.

Only the standard library is imported, so that help appears at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class DataCommand(NamedTuple):
    """A command that trains on a user's table.

    Attributes:
        task: Its task; the program of that name has the defaults of a public data set.
        does: The purpose of the command, as a verb phrase.
        file_flag: The flag that names the table.
        columns: The columns that the table must have.
        default_data: The data of the task's program without a table.
    """

    task: str
    does: str
    file_flag: str
    columns: str
    default_data: str


# The commands for users' tables, by name; `sweep` and others take these names, too.
DATA_COMMANDS: Mapping[str, DataCommand] = {
    "ratings": DataCommand(
        "movielens", "predict ratings", "ratings_file", "user, item, rating", "MovieLens"
    ),
    "ranking": DataCommand(
        "interactions",
        "rank the item that a user chooses next",
        "interactions_file",
        "user, item",
        "MovieLens",
    ),
    "next_word": DataCommand(
        "stackoverflow", "predict the next word", "text_file", "user, text", "generated texts"
    ),
    "labels": DataCommand(
        "reddit",
        "predict labels of texts",
        "text_file",
        "user, text, context (the label; --label_column)",
        "generated comments",
    ),
    "utterances": DataCommand(
        "tv_shows",
        "fit a language model to speakers",
        "text_file",
        "user, text, context (the place of the utterance)",
        "generated dialogues",
    ),
}
# Descriptions of subcommands by group and name. A subcommand that is no task has a module of its
# name in this folder. Only the standard library is imported, so that help appears at once and
# `doctor` runs without packages.
SUBCOMMANDS: Mapping[str, Mapping[str, str]] = {
    "train on your own table": {
        name: f"{table.does}; columns {table.columns}" for name, table in DATA_COMMANDS.items()
    },
    "train on public or generated data": {
        "movielens": "predict ratings of MovieLens: FedRecon and others",
        "interactions": "rank the next film of MovieLens: PFedRec and others",
        "digits": "classify handwritten digits of heterogeneous clients: Ditto and others",
        "stackoverflow": "predict next words of Stack Overflow: FedRecon and others",
        "reddit": "predict subreddits of comments, or films that users like: FURL and others",
        "tv_shows": "model utterances of characters: FedPerC and others",
        "pretrain": "train a small GPT-2 on texts, as a base model",
    },
    "look at runs": {
        "report": "write the page of finished runs again",
        "compare": "compare finished runs of several methods on one page",
        "generate": "generate texts for a user of a FedPerC run",
    },
    "check": {
        "doctor": "check whether experiments can run on this machine",
        "audit": "check by experiment what one client sends",
    },
    "choose and reproduce": {
        "leaderboard": "compare all methods on all tasks, with the same tuning effort",
        "sweep": "choose options of a program on validation clients",
        "ablation": "make each layer local in turn",
        "reproduce": "make a paper's table or figure, with published and measured figures",
    },
}
# The tasks with a data set's defaults, by name, and their folders in `suite/tasks`.
TASKS: Mapping[str, str] = {"digits": "digits", **{d.task: n for n, d in DATA_COMMANDS.items()}}

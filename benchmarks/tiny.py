"""Tiny tables, and options with which every task improves on them in two rounds."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedpersonal.suite.testing import SMALL, SMALL_DIGITS

# Sizes and rates with which each task improves in two rounds.
SIZES: dict[str, dict[str, Any]] = {
    "movielens": {
        "embedding_dim": 3,
        "use_biases": True,
        "rating_offset": 3.5,
        "client_learning_rate": 0.1,
    },
    "digits": {**SMALL_DIGITS},
    "interactions": {"embedding_dim": 3, "num_negatives": 2, "support_negatives": 2},
    "stackoverflow": {
        "vocab_size": 14,
        "num_oov_buckets": 3,
        "sequence_length": 6,
        "embedding_dim": 3,
        "lstm_units": 4,
        "projection_dim": 3,
    },
    "reddit": {
        "num_labels": 3,
        "min_texts": 5,
        "text_encoder": "chars",
        "text_length": 8,
        "character_dim": 3,
        "user_dim": 3,
        "lstm_units": 4,
        "hidden_units": (5,),
    },
    "tv_shows": {
        "text_length": 10,
        "history_length": 12,
        "client_learning_rate": 0.02,
        "local_steps": 2,
        "finetuning_learning_rate": 0.02,
    },
}
# The method with which all checks of a task run.
MAIN = {
    "movielens": "fed_rep",
    "digits": "ditto",
    "interactions": "pfedrec",
    "stackoverflow": "fed_recon_finetuning",
    "reddit": "lg_fed_avg",
    "tv_shows": "fedperc",
}
# Pairs of task and method that the tests of all tasks run to the end, and those for one round.
RUN = [
    *MAIN.items(),
    ("movielens", "local_only"),
    ("digits", "knn_per"),
    ("interactions", "fedrap"),
    ("reddit", "scaffold"),
    ("reddit", "fed_babu"),
    ("reddit", "apfl"),
    ("reddit", "fed_ala"),
    ("reddit", "ifca"),
]
FOR_A_ROUND = [
    *(
        ("movielens", name)
        for name in (
            "fed_avg",
            "fed_prox",
            "fed_sim",
            "fed_alt",
            "fed_per",
            "furl",
            "fed_yogi",
            "fed_adam",
            "fed_avg_finetuning",
            "embedding_finetuning",
            "ditto",
            "per_fed_avg",
            "pfedme",
            "reptile",
            "scaffold_finetuning",
            "fed_dyn",
            "fed_dyn_finetuning",
            "ifca_finetuning",
        )
    ),
    ("reddit", "fed_avg"),
    ("reddit", "mr_mtl"),
    ("reddit", "fed_rod"),
]
# Pairs that the tests of a single task run.
FURTHER = [
    ("movielens", "centralized"),
    ("movielens", "centralized_personalized"),
    ("movielens", "fed_recon"),
    ("reddit", "centralized_personalized"),
    ("stackoverflow", "fed_recon"),
    ("tv_shows", "fedsa_lora"),
    ("tv_shows", "feddpa"),
    ("tv_shows", "rolora"),
    ("tv_shows", "meta_learning"),
    ("tv_shows", "split_learning"),
]


def pairs_with(part: str) -> list[tuple[str, str]]:
    """Returns the pairs of task and method with this text in `task method`."""
    return [pair for pair in [*RUN, *FOR_A_ROUND, *FURTHER] if part in " ".join(pair)]


NUM_USERS = 20
_PLACES = {
    "sea": "boat net tide gull harbour".split(),
    "hill": "goat stone fog fern path".split(),
    "town": "tram shop clock square lamp".split(),
}


def write_ratings(path: pathlib.Path) -> None:
    """Writes ratings of a user's level, an item's level, and small noise."""
    random = np.random.default_rng(3)
    users, items = random.normal(0, 0.8, NUM_USERS), random.normal(0, 0.8, 32)
    rows: list[tuple] = [("user", "item", "rating", "time")]
    for user, taste in enumerate(users):
        for time, item in enumerate(random.permutation(32)[: 15 + user % 5]):
            score = 3.5 + taste + items[item] + random.normal(0, 0.3)
            rows.append((f"u{user}", f"i{item}", int(np.clip(np.rint(score), 1, 5)), time))
    _write_rows(path, rows)


def write_texts(path: pathlib.Path) -> None:
    """Writes short texts about places; each user has a favourite place and a personal word."""
    random = np.random.default_rng(4)
    rows: list[tuple] = [("user", "text", "context", "liked", "time")]
    for user in range(NUM_USERS):
        favourite = list(_PLACES)[user % 3]
        for time in range(12):
            place = favourite if random.random() < 0.6 else random.choice(list(_PLACES))
            first, second = random.choice(_PLACES[place], 2)
            text = f"the {first} by the {second} me{user}."
            rows.append((f"u{user}", text, place, int(place == favourite), time))
    _write_rows(path, rows)


def _write_rows(path: pathlib.Path, rows: Iterable[tuple]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def write_tables(folder: pathlib.Path) -> None:
    """Writes the tables that `tiny_options` refers to."""
    write_ratings(folder / "ratings.csv")
    write_texts(folder / "texts.csv")


def make_base(folder: pathlib.Path) -> Any:
    """Returns a GPT-2 of one layer with random weights, written to a folder and loaded from it."""
    import tensorflow as tf
    from transformers import GPT2Config, TFGPT2LMHeadModel

    from fedpersonal.suite.models.gpt2 import load_base_model, save_base_model, train_tokenizer
    from fedpersonal.suite.readers.generated.dialogues import generate_dialogues

    texts = generate_dialogues(num_other_utterances=200, seed=2).others.texts
    tokenizer = train_tokenizer(texts, vocab_size=300)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=24,
        n_embd=8,
        n_layer=1,
        n_head=2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = TFGPT2LMHeadModel(config)
    model.build_in_name_scope()
    random = np.random.default_rng(0)
    for variable in model.weights:
        # Large enough that first tokens influence all that follow.
        scale = 0.3 if "embeddings" in variable.name or "/ln_" in variable.name else 1.0
        center = 1.0 if variable.name.endswith("gamma:0") else 0.0
        variable.assign(random.normal(center, scale, variable.shape).astype(np.float32))
    save_base_model(folder, model, tokenizer)
    tf.keras.backend.clear_session()
    return load_base_model(folder)


def tiny_options(
    task: Any, folder: pathlib.Path, base_model: str | None = None, **options: Any
) -> Any:
    """Returns tiny options of a task.

    Args:
        task: The task.
        folder: The folder of `write_tables`.
        base_model: The folder of `make_base`, for the task that requires a base model.
        **options: Options that replace the tiny ones.
    """
    files = {
        "movielens": {"ratings_file": "ratings.csv"},
        "interactions": {"interactions_file": "ratings.csv"},
        "digits": {},  # Digits come with scikit-learn.
    }
    table = {
        flag: str(folder / file)
        for flag, file in files.get(task.name, {"text_file": "texts.csv"}).items()
    }
    if task.name == "stackoverflow":
        table["cache_dir"] = str(folder / "cache")
    if base_model is not None:
        table["base_model"] = base_model
        table["base_model_dir"] = str(folder)
    return task.options(**{**SMALL, **SIZES[task.name], **table, **options})

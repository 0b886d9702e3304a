"""What tests of tables share."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedpersonal.suite.papers.reproduction import Reproduction
from fedpersonal.suite.readers.generated.dialogues import generate_dialogues


@pytest.fixture(scope="session")
def few_ratings(tmp_path_factory):
    """The path of a table of 20 users with 20 ratings each."""
    path, random = tmp_path_factory.mktemp("ratings") / "ratings.csv", np.random.default_rng(0)
    lines = [
        f"u{user},i{item},{random.integers(1, 6)},{item}\n"
        for user in range(20)
        for item in random.permutation(30)[:20]
    ]
    path.write_text("user,item,rating,time\n" + "".join(lines))
    return str(path)


@pytest.fixture(scope="session")
def timeless_ratings(few_ratings, tmp_path_factory):
    """The path of the same table without times."""
    path = tmp_path_factory.mktemp("timeless") / "notimes.csv"
    with open(few_ratings, encoding="utf-8") as file:
        path.write_text("".join(line.rsplit(",", 1)[0] + "\n" for line in file))
    return str(path)


@pytest.fixture(scope="session")
def few_utterances(tmp_path_factory, tiny_base):
    """Returns a function that asks for tables of few utterances of 7 users."""
    folder = tmp_path_factory.mktemp("utterances")
    named = generate_dialogues(
        users_per_context=(4, 3),
        num_utterances=84,
        others_per_context=(1, 1),
        num_other_utterances=6,
        seed=0,
    ).named
    users = np.repeat(named.client_ids, np.diff(named.offsets))
    contexts = named.label_names[named.labels]
    lines = [
        json.dumps({"user": user, "text": text, "context": context})
        for user, text, context in zip(users, named.texts, contexts)
    ]
    (folder / "utterances.jsonl").write_text("\n".join(lines))
    given = {
        "text_file": str(folder / "utterances.jsonl"),
        "base_model": tiny_base.source,
        "base_model_dir": str(folder),
        "text_length": 16,
        "history_length": 6,
        "local_steps": 2,
        "client_batch_size": 4,
        "finetuning_epochs": 1,
        "compile": False,
    }

    def ask(output_dir, **changes):
        asked = {"scale_rounds": 0.2, "preset": "quick", **changes}
        return Reproduction(output_dir, options=given, **asked)

    return ask

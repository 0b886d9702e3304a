"""What FedPerC's tables are tested on."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.papers.reproduction import Reproduction
from fedpersonal.data.generated.dialogues import generate_dialogues


@pytest.fixture(name="reproduction_in", scope="session")
def _reproduction_in(tmp_path_factory, tiny_base):
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
    }

    def reproduction_in(output_dir, **changes):
        asked = {"scale_rounds": 0.2, "preset": "quick", "isolated": False}
        given_now = {**given, **changes.pop("given", {})}
        return Reproduction(output_dir, given=given_now, **{**asked, **changes})

    return reproduction_in

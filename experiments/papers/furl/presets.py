"""The hyperparameters of the document tables and figures."""

from __future__ import annotations

import dataclasses

from experiments.papers.presets import Preset
from fedpersonal.tasks.documents.experiment import DocumentOptions


def _on_a_server(*, local_learning_rate: float) -> dict[str, dict[str, float]]:
    """Returns what the centralized methods take instead."""
    own = {"client_learning_rate": 0.5, "local_learning_rate": local_learning_rate}
    return {method: own for method in ("centralized", "centralized_personalized")}


# experiments/presets/reddit_quick.flags: for generated comments, and a first look at others.
QUICK = Preset(
    "quick",
    DocumentOptions(
        total_rounds=400,
        client_batch_size=64,
        client_learning_rate=1.0,
        local_learning_rate=3.0,
        server_optimizer="adam",
        server_learning_rate=0.01,
        reconstruction_learning_rate=1.0,
        reconstruction_epochs=10,
        rounds_per_eval=50,
    ),
    changes=_on_a_server(local_learning_rate=10.0),
)
# experiments/presets/reddit_paper.flags: an epoch a user, ten epochs' worth of rounds.
PAPER = Preset(
    "paper",
    dataclasses.replace(
        QUICK.options, total_rounds=800, decay_rounds=800, clients_per_round=20, rounds_per_eval=80
    ),
    changes=_on_a_server(local_learning_rate=30.0),
)

PRESETS = {preset.name: preset for preset in (QUICK, PAPER)}

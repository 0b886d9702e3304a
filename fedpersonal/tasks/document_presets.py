"""The hyperparameters of the document tables and figures."""

from __future__ import annotations

import dataclasses

from fedpersonal.tasks.document_experiment import DocumentOptions
from fedpersonal.tasks.presets import Preset

# experiments/presets/reddit_quick.flags: for generated comments, and a first look at others.
QUICK = Preset(
    "quick",
    DocumentOptions(
        total_rounds=600,
        client_batch_size=20,
        client_learning_rate=0.5,
        private_learning_rate=1.0,
        reconstruction_learning_rate=1.0,
        reconstruction_epochs=10,
        rounds_per_eval=100,
    ),
)
# experiments/presets/reddit_paper.flags: the paper's ten users a round, an epoch each.
PAPER = Preset("paper", dataclasses.replace(QUICK.options, total_rounds=4000, rounds_per_eval=400))

PRESETS = {preset.name: preset for preset in (QUICK, PAPER)}

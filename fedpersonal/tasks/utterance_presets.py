"""The hyperparameters of FedPerC's tables."""

from __future__ import annotations

import dataclasses

from fedpersonal.tasks.presets import Preset
from fedpersonal.tasks.utterance_experiment import UtteranceOptions

_CHANGES = {
    "fedperc": {"client_learning_rate": 0.03, "fine_tuning_learning_rate": 0.03},
    "fedperc_generated": {"client_learning_rate": 0.003},
    "split_learning": {"client_learning_rate": 0.001, "fine_tuning_learning_rate": 0.001},
    "meta_learning": {"client_learning_rate": 0.001, "fine_tuning_learning_rate": 0.001},
}

# experiments/presets/tv_shows_quick.flags: for generated dialogues, and a first look at others.
QUICK = Preset(
    "quick",
    UtteranceOptions(
        total_rounds=20,
        local_steps=10,
        client_batch_size=15,
        proximal=1.0,
        fine_tuning_steps=15,
        rounds_per_eval=5,
    ),
    changes=_CHANGES,
)
# experiments/presets/tv_shows_paper.flags: the paper's steps, batches and proximal term.
PAPER = Preset("paper", dataclasses.replace(QUICK.options, total_rounds=40), changes=_CHANGES)

PRESETS = {preset.name: preset for preset in (QUICK, PAPER)}

"""The hyperparameters of FedPerC's tables."""

from __future__ import annotations

import dataclasses

from experiments.papers.presets import Preset
from fedpersonal.tasks.utterances.experiment import UtteranceOptions

# Rates, and the weight of FedProx' term, that were best on validation users of the TV shows.
_CHANGES = {
    "fedperc": {
        "client_learning_rate": 0.1,
        "proximal": 0.01,
        "finetuning_learning_rate": 0.005,
        "clip_norm": 5.0,
    },
    "fedperc_generated": {"client_learning_rate": 0.003},
    "split_learning": {"client_learning_rate": 0.001},
    "split_learning_fresh": {"client_learning_rate": 0.003},
    "meta_learning": {"client_learning_rate": 0.001},
    "meta_learning_fresh": {"client_learning_rate": 0.003},
}

# experiments/presets/tv_shows_quick.flags: for generated dialogues, and a first look at others.
QUICK = Preset(
    "quick",
    UtteranceOptions(
        total_rounds=5,
        local_steps=10,
        client_batch_size=15,
        proximal=1.0,
        finetuning_steps=15,
        finetuning_learning_rate=0.0001,
        rounds_per_eval=5,
    ),
    changes=_CHANGES,
)
# experiments/presets/tv_shows_paper.flags: the paper's steps and batches.
PAPER = Preset(
    "paper",
    dataclasses.replace(QUICK.options, total_rounds=8, rounds_per_eval=4),
    changes=_CHANGES,
)

PRESETS = {preset.name: preset for preset in (QUICK, PAPER)}

"""The hyperparameters of the document tables and figures."""

from __future__ import annotations

from fedpersonal.tasks.document_experiment import DocumentOptions
from fedpersonal.tasks.presets import Preset

# experiments/presets/reddit_quick.flags: for generated comments, and a first look at others.
QUICK = Preset("quick", DocumentOptions())
# experiments/presets/reddit_paper.flags: the paper's ten users a round, an epoch each.
PAPER = Preset("paper", DocumentOptions())

PRESETS = {preset.name: preset for preset in (QUICK, PAPER)}

"""The hyperparameters of the next word tables and figures."""

from __future__ import annotations

from typing import Any

from experiments.papers.presets import Preset
from fedpersonal.tasks.next_word.experiment import NextWordOptions


class NextWordPreset(Preset):
    """Methods that train alike may differ only by what their training does not read."""

    def options_of(self, algorithm: str, **own: Any) -> NextWordOptions:
        """Returns the settled options of a method; arguments are those of any `Preset`."""
        return super().options_of(algorithm, **own).settled()


# experiments/presets/stackoverflow_quick.flags: for two cores and some hundreds of users.
QUICK = NextWordPreset(
    "quick",
    NextWordOptions(
        total_rounds=500,
        clients_per_round=20,
        client_batch_size=8,
        client_learning_rate=1.0,
        server_optimizer="yogi",
        server_learning_rate=0.03,
        reconstruction_learning_rate=3.0,
        reconstruction_epochs=2,
        local_epochs=1,
        max_update_norm=20.0,
        finetuning_learning_rate=0.3,
        finetuning_epochs=2,
        embedding_dim=64,
        lstm_units=128,
        projection_dim=64,
        rounds_per_eval=50,
        rounds_per_checkpoint=50,
    ),
)
# experiments/presets/stackoverflow_paper.flags.
PAPER = NextWordPreset("paper", NextWordOptions())

PRESETS = {preset.name: preset for preset in (QUICK, PAPER)}

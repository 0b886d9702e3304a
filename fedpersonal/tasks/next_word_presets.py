"""The hyperparameters of the next word tables and figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedpersonal.tasks.next_word_experiment import NextWordOptions


@dataclasses.dataclass(frozen=True)
class Preset:
    """Hyperparameters of all methods.

    Attributes:
        name: Its name.
        options: What all methods share; the algorithm, vocabulary and seed are not looked at.
        changes: By algorithm, options of its own. Methods that train alike may differ only by
            what their training does not read.
    """

    name: str
    options: NextWordOptions
    changes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def options_of(
        self, algorithm: str, *, scale_rounds: float = 1.0, **own: Any
    ) -> NextWordOptions:
        """Returns the settled options of a method.

        Args:
            algorithm: The method.
            scale_rounds: Factor of the rounds, and of the rounds between evaluations.
            **own: Options such as the vocabulary and the seed.
        """
        changes = {**self.changes.get(algorithm, {}), **own, "algorithm": algorithm}
        options = dataclasses.replace(self.options, **changes).settled()
        return dataclasses.replace(
            options,
            total_rounds=max(1, round(scale_rounds * options.total_rounds)),
            rounds_per_eval=max(1, round(scale_rounds * options.rounds_per_eval)),
        )


# experiments/presets/stackoverflow_quick.flags: for two cores and some hundreds of users.
QUICK = Preset(
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
        update_epochs=1,
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
PAPER = Preset("paper", NextWordOptions())

PRESETS = {preset.name: preset for preset in (QUICK, PAPER)}

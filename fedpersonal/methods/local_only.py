"""Local training alone: each client trains a model of its own, and nothing is ever sent.

There are no rounds. Every client starts from the same initial weights and trains all of them on
what it has before it predicts. A command chooses on the validation clients how many passes it
makes: a fixed number, such as that of fine-tuning, would be too few for a model from scratch, or
too many.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import FinetuningOptions, Method
from fedpersonal.methods.phases import GradientPhase, Phase
from fedpersonal.options import option


class LocalOnly(
    Method,
    name="local_only",
    title="Local training",
    reads=FinetuningOptions,
    finetunes="all",
    trains=False,
):
    """What a client does by itself."""

    standalone_epochs: int = option(
        0,
        "local_only: passes over a client's examples before it predicts; 0: as many as validate "
        "best.",
        at_least=0,
    )

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns the training of a client's model; a single pass until the passes are chosen."""
        moves = self.optimizer("finetuning", kind_of="client")
        return (GradientPhase("all", "all", moves, self.standalone_epochs or 1),)

    def algorithm(self) -> Algorithm:
        """Returns what a client does before it predicts."""
        return Algorithm(
            self.name,
            self.phases(),
            self.local_variables,
            trains=False,
            rebuilding=self.rebuilding(),
        )


_COMMANDS = ("weighting", "max_update_norm", "standalone_epochs")
local_only = constructor(LocalOnly, without=_COMMANDS, local_epochs=5)

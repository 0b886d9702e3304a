"""Local training: each client trains a separate model, and nothing is ever sent.

There are no rounds. Every client starts from the same initial weights and trains all of them on its
data before it predicts. A command chooses the number of passes on the validation clients. A fixed
number, such as that of fine-tuning, would be too small or too large for a model from scratch.
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
    extra_options=FinetuningOptions,
    finetunes="all",
    trains=False,
):
    """Local training without a server."""

    standalone_epochs: int = option(
        0,
        "local_only: passes over a client's examples before it predicts; 0: the number that "
        "validates best.",
        at_least=0,
    )

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns the phase that trains a client's model: one pass until the number is chosen."""
        moves = self.optimizer("finetuning", kind_from="client")
        return (GradientPhase("all", "all", moves, self.standalone_epochs or 1),)

    def algorithm(self) -> Algorithm:
        """Returns the algorithm of a client's training before it predicts."""
        return Algorithm(
            self.name,
            self.phases(),
            self.local_variables,
            trains=False,
            rebuilding=self.rebuilding(),
        )


_COMMANDS = ("weighting", "max_update_norm", "standalone_epochs")
local_only = constructor(LocalOnly, without=_COMMANDS, local_epochs=5)

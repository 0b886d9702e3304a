"""Local training alone: each client trains a model of its own, and nothing is ever sent.

There are no rounds. Every client starts from the same initial weights and trains all of them on
what it has before it predicts.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import FinetuningOptions, Method


class LocalOnly(
    Method,
    name="local_only",
    title="Local training",
    reads=FinetuningOptions,
    finetunes="all",
    trains=False,
):
    """What a client does by itself."""

    def algorithm(self) -> Algorithm:
        """Returns what a client does before it predicts."""
        return Algorithm(self.name, self.phases(), self.local_variables, trains=False)


local_only = constructor(LocalOnly, without=("weighting", "max_update_norm"), local_epochs=5)

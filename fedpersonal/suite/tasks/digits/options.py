"""The options of the task of handwritten digits."""

from __future__ import annotations

from fedpersonal.methods.method import KeepingOptions
from fedpersonal.options import Options, option
from fedpersonal.suite.tasks.options import RunOptions


class DigitOptions(Options):
    """The clients' digits, and their classifier."""

    num_clients: int = option(50, "The number of clients.", at_least=10, at_most=200, in_help=True)
    skew: float = option(
        0.5,
        "Dirichlet parameter of a digit's distribution over clients: lower values give clients "
        "fewer different digits.",
        at_least=0.05,
        at_most=1000,
        in_help=True,
    )
    unseen_clients: float = option(
        0.2, "Share of unseen clients, who never train.", at_least=0.1, at_most=0.9, in_help=True
    )
    hidden_dim: int = option(
        32, "Size of the hidden layer.", at_least=1, at_most=10_000, in_help=True
    )


class DigitRun(DigitOptions, KeepingOptions, RunOptions):
    """The options of a run of this task."""

"""Local training alone: each client trains a model of its own, and nothing is ever sent.

There are no rounds. Every client starts from the same initial weights and trains all of them on
what it has before it predicts.
"""

from __future__ import annotations

import dataclasses

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms import fed_avg
from fedpersonal.algorithms.method import ClientOptions, FinetuningOptions, Layers, Method


class LocalOnlyOptions(ClientOptions, FinetuningOptions):
    """What a client does by itself."""


def build(options: LocalOnlyOptions, layers: Layers) -> Algorithm:
    """Returns what no round runs: FedAvg under another name."""
    return dataclasses.replace(fed_avg.build(options, layers), name="local_only")


METHODS = (
    Method("local_only", "Local training", build, LocalOnlyOptions, finetunes="all", trains=False),
)

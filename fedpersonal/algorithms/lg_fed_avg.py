"""Local representations, a global model on top of them.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020 (arXiv 2001.01523), Algorithm 1: each client encodes its data by layers of
its own, and the layers on top are averaged.

Departures: without the paper's auxiliary and adversarial losses.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms import furl
from fedpersonal.algorithms.method import KeepingOptions, Layers, Method


def lg_fed_avg(**options: Any) -> Algorithm:
    """Returns the one phase of LG-FedAvg, for a model whose first layers are local.

    Args:
        **options: Of `furl`.
    """
    return dataclasses.replace(furl.furl(**options), name="lg_fed_avg")


def build(options: KeepingOptions, layers: Layers) -> Algorithm:
    """Returns LG-FedAvg as options describe it."""
    return dataclasses.replace(furl.build(options, layers), name="lg_fed_avg")


METHODS = (Method("lg_fed_avg", "LG-FedAvg", build, KeepingOptions, local_part="body"),)

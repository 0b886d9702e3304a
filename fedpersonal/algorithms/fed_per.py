"""Federated learning with personalisation layers.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (arXiv 1912.00818),
Algorithm 1: base layers are averaged, the layers on top of them are the client's own, and both are
trained together. What tells it from FURL is which layers are local.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms import furl
from fedpersonal.algorithms.method import KeepingOptions, Layers, Method


def fed_per(**options: Any) -> Algorithm:
    """Returns the one phase of FedPer, for a model whose last layers are local.

    Args:
        **options: Of `furl`.
    """
    return dataclasses.replace(furl.furl(**options), name="fed_per")


def build(options: KeepingOptions, layers: Layers) -> Algorithm:
    """Returns FedPer as options describe it."""
    return dataclasses.replace(furl.build(options, layers), name="fed_per")


METHODS = (Method("fed_per", "FedPer", build, KeepingOptions, local_part="head"),)

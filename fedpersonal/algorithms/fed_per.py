"""Federated learning with personalisation layers.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (arXiv 1912.00818),
Algorithm 1: base layers are averaged, the layers on top of them are the client's own, and both are
trained together. What tells it from FURL is which layers are local.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms.furl import furl


def fed_per(**options: Any) -> Algorithm:
    """Returns the one phase of FedPer, for a model whose last layers are local.

    Args:
        **options: Of `furl`.
    """
    return dataclasses.replace(furl(**options), name="fed_per")

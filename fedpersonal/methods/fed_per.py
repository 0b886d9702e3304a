"""Federated learning with personalisation layers.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (arXiv 1912.00818),
Algorithm 1: base layers are averaged, the layers on top of them are local, and both are trained
together. It differs from FURL in the choice of local layers.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.furl import Furl


class FedPer(Furl, name="fed_per", title="FedPer", local_part="head"):
    """FedPer: FURL for a model whose last layers are local."""


fed_per = constructor(FedPer)

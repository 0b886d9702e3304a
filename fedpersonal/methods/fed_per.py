"""Federated learning with personalisation layers.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (arXiv 1912.00818),
Algorithm 1: base layers are averaged, the layers on top of them are the client's own, and both are
trained together. What tells it from FURL is which layers are local.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.furl import Furl


class FedPer(Furl, name="fed_per", title="FedPer", local_part="head"):
    """What a client of FedPer does, for a model whose last layers are local."""


fed_per = constructor(FedPer)

"""Local representations, a global model on top of them.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020 (arXiv 2001.01523), Algorithm 1: each client encodes its data by layers of
its own, and the layers on top are averaged.

Departures: without the paper's auxiliary and adversarial losses.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.furl import Furl


class LgFedAvg(Furl, name="lg_fed_avg", title="LG-FedAvg", local_part="body"):
    """What a client of LG-FedAvg does, for a model whose first layers are local."""


lg_fed_avg = constructor(LgFedAvg)

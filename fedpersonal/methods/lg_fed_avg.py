"""Local representations, with a global model on top of them.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020 (arXiv 2001.01523), Algorithm 1: each client encodes its data with local
layers, and the layers on top are averaged.

Departures: there are no auxiliary and adversarial losses, which the paper has.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.furl import Furl


class LgFedAvg(Furl, name="lg_fed_avg", title="LG-FedAvg", local_part="body"):
    """LG-FedAvg: FURL for a model whose first layers are local."""


lg_fed_avg = constructor(LgFedAvg)

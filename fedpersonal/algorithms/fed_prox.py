"""FedAvg whose clients are held near the weights that the server sent.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv 1812.06127),
Algorithm 2.

Departures: all clients make the same number of epochs, where the paper lets slow ones make fewer.
"""

from __future__ import annotations

import dataclasses

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.method import ClientOptions, Layers, Method
from fedpersonal.options import option


class FedProxOptions(ClientOptions):
    """What a client of FedProx does."""

    proximal: float = option(0.1, "Weight mu of FedProx' term.", at_least=0)


def build(options: FedProxOptions, layers: Layers) -> Algorithm:
    """Returns FedProx as options describe it."""
    del layers
    algorithm = fed_avg(**options.local_work(), proximal=options.proximal)
    return dataclasses.replace(algorithm, name="fed_prox")


METHODS = (Method("fed_prox", "FedProx", build, FedProxOptions),)

"""Adaptive optimizers on the server.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021: FedAvg whose server takes the averaged
update for a gradient. Any method can have such a server; these are FedAvg's.
"""

from fedpersonal.algorithms.fed_avg import build
from fedpersonal.algorithms.method import Method

METHODS = (
    Method("fed_yogi", "FedYogi", build, server_optimizer="yogi"),
    Method("fed_adam", "FedAdam", build, server_optimizer="adam"),
)

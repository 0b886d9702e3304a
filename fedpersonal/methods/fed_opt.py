"""Adaptive optimizers on the server.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021: FedAvg whose server uses the averaged
update as a gradient. Every method can have such a server; these are FedAvg's.
"""

from __future__ import annotations

from fedpersonal.methods.fed_avg import FedAvg


class FedYogi(
    FedAvg, name="fed_yogi", title="FedYogi", same_rounds_as="fed_avg", server_optimizer="yogi"
):
    """FedAvg with Yogi on the server."""


class FedAdam(
    FedAvg, name="fed_adam", title="FedAdam", same_rounds_as="fed_avg", server_optimizer="adam"
):
    """FedAvg with Adam on the server."""

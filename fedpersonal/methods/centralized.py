"""Training without federation: one server that holds all clients' data.

The baselines of the papers' tables (Singhal et al., Table 1; Bui et al., Table 2).

Departures: a round takes as many examples as a federated round does on average, so that rounds are
comparable.
"""

from __future__ import annotations

from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import Phase


class Centralized(
    Method, name="centralized", title="Centralized", is_federated=False, server_optimizer="sgd"
):
    """Training of a server on all clients' data."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the server's epochs."""
        return (self.phase(max_steps=None),)


class CentralizedPersonalized(
    Centralized,
    name="centralized_personalized",
    title="Centralized + user embeddings",
    extra_options=KeepingOptions,
    required_layers=("table",),
    has_table=True,
):
    """Centralised training with a separate learning rate for users' embeddings."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the server's epochs."""
        users = self.optimizer("local", decays=False)
        optimizers = dict.fromkeys(self.layers.table, users)
        return (self.phase(max_steps=None, optimizers=optimizers),)

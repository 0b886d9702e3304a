"""Training without federation: one server that holds everybody's data.

The baselines of the papers' tables (Singhal et al., Table 1; Bui et al., Table 2).

Departures: a round takes as many examples as a federated one does on average, so that rounds mean
the same for both.
"""

from __future__ import annotations

from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import Phase


class Centralized(
    Method, name="centralized", title="Centralized", is_federated=False, server_optimizer="sgd"
):
    """What a server does with everybody's data."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the server's epochs."""
        return (self.phase(max_steps=None),)


class CentralizedPersonalized(
    Centralized,
    name="centralized_personalized",
    title="Centralized + user embeddings",
    reads=KeepingOptions,
    needs=("table",),
    has_table=True,
):
    """The same with a learning rate of its own for users' embeddings."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the server's epochs."""
        users = self.optimizer("local", decays=False)
        optimizers = dict.fromkeys(self.layers.table, users)
        return (self.phase(max_steps=None, optimizers=optimizers),)

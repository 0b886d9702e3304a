"""A blend of each client's head with the shared head, with a learnt share for each weight.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023
(arXiv 2212.01197), Algorithm 1: a client replaces its previous head v by v + b * (w - v), where w
is the head that the server sent. The shares b, between 0 and 1 for each weight, are first learnt on
the client's data. The client takes all lower layers from the server. It then trains the whole model
and sends it. It predicts with a new blend of its head and the latest shared head.

Departures: b takes as many passes in the first round as in later ones, on all of a client's data;
in the paper, the first round trains b to convergence, on a random share of the data. A client that
has kept nothing trains a head first.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import PersonalCopies
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import BlendPhase, Phase
from fedpersonal.options import option


class FedAla(
    Method, name="fed_ala", title="FedALA", extra_options=KeepingOptions, local_variables="kept",
    required_layers=("shared_head",), finetunes="head",
):  # fmt: skip
    """FedALA: a phase of the shares b, then one of the whole model."""

    blend_rate: float = option(1.0, "fed_ala: SGD rate of b.", above=0)
    blend_epochs: int = option(1, "fed_ala: passes of b before a round's training.", at_least=1)

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase of b and that of the whole model."""
        local = self.optimizer("local")
        rest = self.phase(optimizers={"local": local} if local else {})
        return *self.adaptation(), rest

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns the phase that blends a client's head with the shared one before it predicts."""
        return (BlendPhase("all", self.blend_rate, self.blend_epochs),)

    def personal(self) -> PersonalCopies:
        """Returns the client's head, which it sends."""
        return PersonalCopies(self.layers.head, are_sent=True, blends=True)

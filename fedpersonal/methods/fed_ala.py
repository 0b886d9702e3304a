"""Each client takes of the shared head as much as its data want, weight by weight.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023
(arXiv 2212.01197), Algorithm 1: a client goes on with its head of the last time, v, brought to
v + b * (w - v), where w is what the server sent and b, between 0 and 1 for each weight, is learnt
on the client's data first; all lower layers are taken over. It then trains the whole model and
sends it. It predicts with such a blend, brought about anew from what the server has sent by then.

Departures: b takes as many passes in the first round as in others, where the paper's goes on to
convergence, and on all of a client's data instead of a random share. A client that has kept nothing
trains a head first.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import PersonalCopies
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import BlendPhase, Phase
from fedpersonal.options import option


class FedAla(
    Method, name="fed_ala", title="FedALA", reads=KeepingOptions, local_variables="kept",
    needs=("shared_head",), finetunes="head",
):  # fmt: skip
    """What a client of FedALA does."""

    blend_rate: float = option(1.0, "fed_ala: SGD rate of b.", above=0)
    blend_epochs: int = option(1, "fed_ala: passes of b before a round's training.", at_least=1)

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase of b and that of the whole model."""
        own = self.optimizer("local")
        rest = self.phase(optimizers={"local": own} if own else {})
        return *self.adaptation(), rest

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns what brings a client's head near the shared one before it predicts."""
        return (BlendPhase("all", self.blend_rate, self.blend_epochs),)

    def personal(self) -> PersonalCopies:
        """Returns the client's head, which it sends."""
        return PersonalCopies(self.layers.head, are_sent=True, blends=True)

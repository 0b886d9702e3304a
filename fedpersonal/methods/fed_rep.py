"""A shared representation and local heads, trained in turn.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021
(arXiv 2102.07078), Algorithm 1: steps on the local head with the representation frozen, then steps
on the representation with the head frozen.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import Phase
from fedpersonal.options import option


class FedRep(
    Method,
    name="fed_rep",
    title="FedRep",
    extra_options=KeepingOptions,
    local_variables="kept",
    local_part="head",
):
    """FedRep: a phase of the head, then one of the representation."""

    local_only_epochs: int = option(
        1, "Passes that move only the local variables, before the global ones move.", at_least=0
    )

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase of the head (tau passes) and that of the representation."""
        optimizer = self.optimizer("local") or self.optimizer("client")
        head = self.phase("local", optimizer=optimizer, epochs=self.local_only_epochs)
        return head, self.phase("global")


fed_rep = constructor(FedRep)

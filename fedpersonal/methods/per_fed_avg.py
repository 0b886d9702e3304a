"""FedAvg for meta-learning: a shared model that one gradient step adapts well to a client.

Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020 (arXiv 2002.07948), Algorithm 1 with the first-order gradient
(FO): each local step first takes an inner step on a batch of the support set, and then uses the
gradient there of a batch of the query set. Before it predicts, a client takes an inner step.

Departures: only the paper's first-order approximation, without Hessians. A client may take several
steps before it predicts.
"""

from __future__ import annotations

from fedpersonal.data.splits import split_parts
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import Method, SplitOptions
from fedpersonal.methods.phases import GradientPhase, LookAhead, Phase
from fedpersonal.optimizers import optimizer
from fedpersonal.options import option


class PerFedAvg(
    Method, name="per_fed_avg", title="Per-FedAvg", extra_options=SplitOptions, finetunes="all"
):
    """Per-FedAvg: one phase whose steps look ahead."""

    adapting = optimizer("adaptation", 0.01, "per_fed_avg: SGD rate alpha of the inner step.")
    adaptation_steps: int = option(
        1, "per_fed_avg: inner steps of a client before it predicts.", at_least=1
    )

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, whose steps have the rate beta."""
        support, query = split_parts(self.support_query_split, self.support_share)
        ahead = LookAhead(self.optimizer("adaptation"), data=support)
        return (self.phase("all", query, ahead=ahead),)

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns the phase that adapts a client's copy before it predicts."""
        steps, optimizer = self.adaptation_steps, self.optimizer("adaptation")
        return (GradientPhase("all", "all", optimizer, epochs=steps, max_steps=steps),)


per_fed_avg = constructor(PerFedAvg, without=["adaptation_steps"], optimizers=None, proximal=0.0)

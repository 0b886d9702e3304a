"""Several models on the server; each client mixes them by how well they fit its data.

Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of
Distributions", NeurIPS 2021 (arXiv 2108.10252), Algorithm 1, FedEM: all clients' data come from the
same M distributions, in client-specific proportions pi, which each client keeps. In each round, a
client computes for each example the posterior probability of each model. Pi becomes the mean of
these probabilities. Each model takes local steps on the examples, weighted by them, and the server
averages each model over clients. A client predicts with the pi-weighted mean of the models'
probabilities. An unseen client estimates pi before it predicts, and trains no model.

Departures: the weights of examples are computed at each local step, from the new pi; in the paper,
once a round, from the previous pi. In a text, each word has a weight. A client takes `em_steps`
steps of pi, in the paper one a round. A client that has kept no pi starts from equal shares, and
takes as many steps before it predicts; in the authors' code it resumes from the previous
evaluation. A term that a model adds to the loss, such as a penalty, is the mean over the models,
whatever pi is. The method requires labels that are classes and a cross-entropy: a regression loss
is refused. `max_update_norm` bounds the update of all models together.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import ClusterOptions, Method
from fedpersonal.methods.phases import ChoicePhase, Phase
from fedpersonal.options import option


class FedEm(
    Method,
    name="fed_em",
    title="FedEM",
    extra_options=ClusterOptions,
    local_variables="kept",
    required_layers=("shared_head",),
):
    """FedEM: a phase of the models' weights, then one that trains the models."""

    em_steps: int = option(1, "fed_em: passes that estimate the models' weights.", at_least=1)

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase of the models' weights and that of the models."""
        weighing = ChoicePhase(
            "all", self.num_clusters, mean_over="cohort", mixes=True, epochs=self.em_steps
        )
        return weighing, self.phase("global")


fed_em = constructor(FedEm)

"""The server has several models; each client mixes them by how well they suit its data.

Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of
Distributions", NeurIPS 2021 (arXiv 2108.10252), Algorithm 1, FedEM: a client's data come from M
distributions, shared by all, in proportions pi of its own, which it keeps. In each round, it works
out for each example how likely each model has made it. Pi becomes the mean of that, and each model
takes local steps on the examples, by these weights; the server averages it over clients. A client
predicts with the mean of what the models make likely, by pi. One that took no part in training
weighs the models before it predicts, and trains none.

Departures: the weights of examples are worked out anew at each local step, by the new pi; in the
paper once a round, by the old one. In a text, each word has its own. A client takes `em_steps`
steps of pi, in the paper one a round. One that has kept no pi starts from equal shares, and takes
as many before it predicts; in the authors' code it goes on from one evaluation to the next. What a
model adds to the loss, such as a penalty, is the mean over the models, whatever pi is. It is for
labels that are classes and a cross-entropy: a loss of numbers is refused. `max_update_norm` bounds
the update of all models together.
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
    reads=ClusterOptions,
    local_variables="kept",
    needs=("shared_head",),
):
    """What a client of FedEM does."""

    em_steps: int = option(1, "fed_em: passes in which a client weighs the models.", at_least=1)

    def phases(self) -> tuple[Phase, ...]:
        """Returns the weighing of the models, and their training."""
        weighing = ChoicePhase(
            "all", self.num_clusters, mean_over="cohort", mixes=True, epochs=self.em_steps
        )
        return weighing, self.phase("global")


fed_em = constructor(FedEm)

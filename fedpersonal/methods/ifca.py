"""Several models on the server; each client trains and predicts with the one that fits its data.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020 (arXiv 2006.04088), Algorithm 1, IFCA: the server sends all models. A client chooses
the one with the least loss on its data, trains it, and reports its choice. With
--mean_over=cluster, the paper's model averaging, each model becomes the mean over the clients that
chose it. With `cohort`, the paper's gradient averaging, each model moves by the sum of its clients'
changes, divided by the number of all clients in the round; only the changes that are 0 then reveal
the choices. A client makes its choice before it predicts; one without data predicts with the first
model.

Departures: the mean is weighted by examples unless `weighting` is `uniform`. `max_update_norm`
bounds the update of the chosen model, but not the choice that is sent. An aggregator that zeroes or
clips an update does not change the choice, either: with --mean_over=cluster the client then counts
in the mean of its model, with the changed update. In gradient averaging, a client may take several
local steps. Each model has one random initialisation; some of the paper's experiments try several
and take the best. The models share no layers; in a program, `fp.ChoicePhase` takes the names of the
layers that they do not share.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import ClusterOptions, Method
from fedpersonal.methods.phases import MEANS, ChoicePhase, Phase
from fedpersonal.options import option


class Ifca(
    Method, name="ifca", title="IFCA", extra_options=ClusterOptions, local_variables="rebuilt"
):
    """IFCA: a phase that chooses a model, then one that trains it."""

    mean_over: str = option(
        "cluster",
        "ifca: a model moves by the mean over the clients that chose it, or over the whole cohort.",
        choices=MEANS,
    )

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase that chooses a model and the one that trains it."""
        choice = ChoicePhase("all", self.num_clusters, mean_over=self.mean_over)
        return choice, self.phase("global")


IfcaFinetuning = Ifca.finetuned()

ifca = constructor(Ifca)

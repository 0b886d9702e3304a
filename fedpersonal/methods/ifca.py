"""The server has several models; each client trains and predicts with the one that suits its data.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020 (arXiv 2006.04088), Algorithm 1, IFCA: all models are sent; a client chooses the one
of the least loss on its data, trains it, and tells which it is. With --mean_over=cluster, the
paper's model averaging, each model becomes the mean of what its clients have made of it. With
`cohort`, its gradient averaging, it moves by the sum of their changes, divided by the number of all
who took part; who has chosen which is then told by nothing but which changes are 0. Before it
predicts, a client chooses; one that has no data predicts with the first model.

Departures: the mean is weighted by examples unless `weighting` is `uniform`. `max_update_norm`
bounds the update of the chosen model, and not the choice that is sent. An aggregator that zeroes or
clips an update leaves the choice, too: with --mean_over=cluster the client then counts in the mean
of its model, with the update that the aggregator has made. In gradient averaging, a change may be
that of several local steps. Models start at one draw each, where some of the paper's experiments
try several starts and take the best. No layers are shared by all models; in a program,
`fp.ChoicePhase` takes the names of those that are not.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import ClusterOptions, Method
from fedpersonal.methods.phases import MEANS, ChoicePhase, Phase
from fedpersonal.options import option


class Ifca(Method, name="ifca", title="IFCA", reads=ClusterOptions, local_variables="rebuilt"):
    """What a client of IFCA does."""

    mean_over: str = option(
        "cluster",
        "ifca: a model moves by the mean over those who chose it, or over the whole cohort.",
        choices=MEANS,
    )

    def phases(self) -> tuple[Phase, ...]:
        """Returns the choice of a model, and its training."""
        choice = ChoicePhase("all", self.num_clusters, mean_over=self.mean_over)
        return choice, self.phase("global")


IfcaFinetuning = Ifca.finetuned()

ifca = constructor(Ifca)

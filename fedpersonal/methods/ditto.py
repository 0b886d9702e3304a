"""A personal model that is regularised towards the shared one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021 (arXiv
2012.04221), Algorithm 1: a client trains its copy v of the model on its loss + lambda / 2 times the
squared distance from the shared weights, and trains the shared model as in FedAvg. It predicts with
v.

Departures: the paper has no unseen clients; here, a client that has kept no copy trains one from
the shared model, by the same rule.
"""

from __future__ import annotations

import dataclasses

from fedpersonal.methods.algorithm import PersonalCopies
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.fed_rep import FedRep
from fedpersonal.methods.method import PullOptions
from fedpersonal.methods.phases import GradientPhase, Phase


class Ditto(FedRep, name="ditto", title="Ditto", extra_options=PullOptions, local_part=None):
    """Ditto: the phases of FedRep, with a copy of the whole model in place of the head.

    `local_only_epochs` is s in the paper, `local_epochs` is r.
    """

    copies = PersonalCopies()

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase of the copy and that of the shared model."""
        local, shared = super().phases()
        assert isinstance(local, GradientPhase)
        return dataclasses.replace(local, variables="personal", proximal=self.pull), shared


ditto = constructor(Ditto)

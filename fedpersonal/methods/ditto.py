"""A personal model beside the shared one, held near it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021 (arXiv
2012.04221), Algorithm 1: a client trains its copy v of the model on its loss + lambda / 2 times the
squared distance from what the server sent; and the shared model as in FedAvg. It predicts with v.

Departures: the paper has no clients who took no part; here, one that has kept no copy trains one
from the shared model, by the same rule.
"""

from __future__ import annotations

import dataclasses

from fedpersonal.methods.algorithm import PersonalCopies
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.fed_rep import FedRep
from fedpersonal.methods.method import PullOptions
from fedpersonal.methods.phases import GradientPhase, Phase


class Ditto(FedRep, name="ditto", title="Ditto", reads=PullOptions, local_part=None):
    """What a client of Ditto does: that of FedRep, whose head is here the client's copy.

    `local_only_epochs` are s of the paper, `local_epochs` r.
    """

    copies = PersonalCopies()

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase of the copy and that of the shared model."""
        own, shared = super().phases()
        assert isinstance(own, GradientPhase)
        return dataclasses.replace(own, variables="personal", proximal=self.pull), shared


ditto = constructor(Ditto)

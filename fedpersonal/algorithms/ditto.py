"""A personal model beside the shared one, held near it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021 (arXiv
2012.04221), Algorithm 1: a client trains its copy v of the model on its loss + lambda / 2 times the
squared distance from what the server sent; and the shared model as in FedAvg. It predicts with v.

Departures: the paper has no clients who took no part; here, one that has kept no copy trains one
from the shared model, by the same rule.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fedpersonal.algorithm import Algorithm, GradientPhase, PersonalCopies
from fedpersonal.algorithms.fed_rep import FedRepOptions, fed_rep
from fedpersonal.algorithms.method import Layers, Method, PullOptions


def ditto(*, pull: float = 1.0, **options: Any) -> Algorithm:
    """Returns the two phases of Ditto.

    Args:
        pull: Weight of the copy's pull to the shared model, lambda.
        **options: Of `fed_rep`, whose head is here the client's copy: `local_only_epochs` are s of
            the paper, `local_epochs` r.
    """
    algorithm = fed_rep(**options)
    own, shared = algorithm.phases
    assert isinstance(own, GradientPhase)
    own = dataclasses.replace(own, variables="personal", proximal=pull)
    return dataclasses.replace(
        algorithm, name="ditto", phases=(own, shared), personal=PersonalCopies()
    )


class DittoOptions(FedRepOptions, PullOptions):
    """What a client of Ditto does."""


def build(options: DittoOptions, layers: Layers) -> Algorithm:
    """Returns Ditto as options describe it."""
    del layers
    algorithm = ditto(
        **options.local_work(),
        local_optimizer=options.local_optimizer(),
        pull=options.pull,
        local_only_epochs=options.local_only_epochs,
    )
    return options.settle(algorithm)


METHODS = (Method("ditto", "Ditto", build, DittoOptions, has_copies=True),)

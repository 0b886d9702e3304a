"""A personal model beside the shared one, held near it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021 (arXiv
2012.04221), Algorithm 1: a client trains its copy v of the model on its loss + lambda / 2 times the
squared distance from what the server sent; and the shared model as in FedAvg. It predicts with v.
A client that has kept none trains one from the shared model, by the same rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpersonal.algorithm import Algorithm, GradientPhase, PersonalCopies
from fedpersonal.algorithms.fed_rep import FedRepOptions
from fedpersonal.algorithms.method import Layers, Method, PullOptions

if TYPE_CHECKING:
    import tensorflow_federated as tff


def ditto(
    *,
    client_optimizer: tff.learning.optimizers.Optimizer,
    local_optimizer: tff.learning.optimizers.Optimizer | None = None,
    pull: float = 1.0,
    local_only_epochs: int = 1,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: str = "num_examples",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns the two phases of Ditto.

    Args:
        client_optimizer: Optimizer of the shared model.
        local_optimizer: Optimizer of the client's copy, or None for the same.
        pull: Weight of the copy's pull to the shared model, lambda.
        local_only_epochs: Passes over the client's data in which the copy moves (s).
        local_epochs: Passes in which the shared model moves (r).
        max_local_steps: Bound on the steps of each phase.
        weighting: `num_examples` or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.
    """
    optimizer = local_optimizer or client_optimizer
    own = GradientPhase(
        "personal", "all", optimizer, local_only_epochs, max_local_steps, proximal=pull
    )
    shared = GradientPhase("global", "all", client_optimizer, local_epochs, max_local_steps)
    phases, copies = (own, shared), PersonalCopies()
    return Algorithm("ditto", phases, "kept", weighting, max_update_norm, personal=copies)


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
